"""The page Data sets, at /datasets: what is in store, and every way in. Its filter is in the address (?search=...)."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr
from markupsafe import Markup

from app import callers, changes
from app.callers import Forbidden
from app.pages import data, sources
from app.pages.datasets_parts import intakes_html, list_html, refusal_html, removal_html
from app.pages.intake import intakes
from app.pages.parts import QUIET, database_away, html, title
from app.pages.sources import ONE_SET, WAYS
from worker import database, datasets, usage
from worker.datasets import DatasetInUse, DatasetNotFound
from worker.patience import UNREACHABLE

_REFRESH_SECONDS = 2.0
_HIDDEN: dict[str, Any] = {"show_label": False, "container": False}


@dataclass(frozen=True)
class Shown:
    """What a browser shows now, so that only what is new is sent; `removing` is the data set that is asked about."""

    list: str = ""
    incoming: str = ""
    removing: str = ""


@dataclass(frozen=True)
class Page:
    """The components that handlers read and write."""

    search: Any  # Gradio's components get their events while running, unseen by a type checker
    incoming: gr.HTML
    list: gr.HTML
    dialog: gr.Column
    asked: gr.HTML
    confirm: gr.Button


def build(demo: gr.Blocks) -> None:
    """Components, handlers and wiring of the page."""
    shown = gr.State(Shown())
    title("Data sets", Markup('<a class="button" href="/new">New run</a>'))
    with gr.Tabs(elem_classes="card sources"):
        upload, way = _upload_tab()
        folder, add = _folder_tab()
        asked = _hub_tab()
    page = _components()

    seen = [shown, page.incoming, page.list]
    look = [page.search, shown]
    demo.load(opened, None, [page.search, folder, *seen], **QUIET)
    upload.upload(uploaded, [upload, way, *look], [upload, *seen], **QUIET)
    add.click(added, [folder, *look], [folder, *seen], **QUIET)
    asked[-1].click(fetched, [*asked[:-1], *look], seen, **QUIET)
    gr.on([page.search.change], looked, look, seen, trigger_mode="always_last", **QUIET)
    gr.Timer(_REFRESH_SECONDS).tick(looked, look, seen, **QUIET)
    dialog = [page.dialog, page.asked, page.confirm]
    page.list.select(pressed, look, [*dialog, *seen], **QUIET)
    page.incoming.select(pressed, look, [*dialog, *seen], **QUIET)
    page.confirm.click(removed, look, [*dialog, *seen], **QUIET)


def opened(request: gr.Request) -> list[Any]:
    """The page as its address asks for it."""
    search = str(request.query_params.get("search", ""))[:200]
    return [search, gr.update(choices=sources.folder_choices(), value=[]), *looked(search, Shown())]


def looked(search: str, before: Shown) -> list[Any]:
    """What is new since the page was last sent; mostly nothing."""
    incoming, listed = str(intakes_html(intakes.all(), callers.current().may_change)), _listed((search or "").strip())
    now = Shown(listed, incoming, before.removing)
    if now == before:
        return [gr.skip()] * 3
    return [now, gr.skip() if incoming == before.incoming else incoming, gr.skip() if listed == before.list else listed]


def uploaded(files: list[str] | None, way: str, search: str, before: Shown) -> list[Any]:
    """Has the files checked, together or apart."""
    if files:
        sources.take_uploads([Path(file) for file in files], way)
    return [None, *looked(search, before)]


def added(names: list[str] | None, search: str, before: Shown) -> list[Any]:
    """Has files of the server's own folders checked."""
    for name in names or []:
        sources.take_from_folder(name)
    return [gr.update(value=[]), *looked(search, before)]


def fetched(name: str, split: str, config: str, revision: str, search: str, before: Shown) -> list[Any]:
    """Has a data set of the hub fetched and checked."""
    if (name or "").strip():
        sources.take_from_hub(name.strip(), split.strip(), config.strip(), revision.strip())
    return looked(search, before)


def pressed(event: gr.EventData, search: str, before: Shown) -> list[Any]:
    """What was pressed in the list: remove asks first, dismiss forgets, the sample is taken in."""
    asked = event._data if isinstance(event._data, dict) else {}
    if "remove" in asked:
        return [
            *_ask(str(asked["remove"])),
            Shown(before.list, before.incoming, str(asked["remove"])),
            gr.skip(),
            gr.skip(),
        ]
    if "dismiss" in asked:
        with suppress(Forbidden):  # answered with 403 by app/authentication.py
            intakes.dismiss(int(asked["dismiss"]))
    if asked.get("sample"):
        sources.take_sample()
    return [gr.skip()] * 3 + looked(search, before)


def removed(search: str, before: Shown) -> list[Any]:
    """Removes the data set that was asked about; what keeps it is said where it was asked."""
    try:
        changes.remove_dataset(before.removing)
    except (DatasetInUse, Forbidden) as error:
        return [*_told(refusal_html("It was not removed.", str(error))), *looked(search, before)]
    except DatasetNotFound:
        pass  # somebody else was quicker
    except UNREACHABLE:
        return [*_told(database_away()), *looked(search, before)]
    return [gr.update(visible=False), gr.skip(), gr.skip(), *looked(search, before)]


def _ask(dataset_id: str) -> list[Any]:
    try:
        with database.read() as session:
            item = datasets.get(session=session, dataset_id=dataset_id)
            users = usage.users(session=session).get(dataset_id, [])
    except DatasetNotFound as error:
        return _told(refusal_html("It is gone already.", str(error)))
    except UNREACHABLE:
        return _told(database_away())
    may = not any(user.needs_it for user in users)
    return [gr.update(visible=True), removal_html(item, users), gr.update(interactive=may)]


def _told(message: Markup) -> list[Any]:
    """The dialog with nothing left to confirm."""
    return [gr.update(visible=True), message, gr.update(interactive=False)]


def _listed(search: str) -> str:
    try:
        with database.read() as session:
            may_change = callers.current().may_change
            return list_html(datasets.listing(session=session), usage.users(session=session), search, may_change)
    except UNREACHABLE:
        return database_away()


def _components() -> Page:
    incoming = html(script="lathe.sendClicks(element, trigger)")
    with gr.Row(elem_classes="filters"):
        search = gr.Textbox(label="Search", placeholder="Search name, format or id", elem_id="search", **_HIDDEN)
    listed = html(script="lathe.sets(element, trigger, watch)")
    with gr.Column(visible=False, elem_classes="dialog") as dialog, gr.Column(elem_classes="card"):
        asked = html()
        with gr.Row():
            keep = gr.Button("Keep it", elem_classes="dialog-cancel")
            confirm = gr.Button("Remove", variant="stop", elem_id="confirm-remove")
    keep.click(lambda: gr.update(visible=False), None, dialog, **QUIET)
    return Page(search, incoming, listed, dialog, asked, confirm)


def _upload_tab() -> tuple[Any, Any]:
    with gr.Tab("Upload"):
        upload = data.upload_box(several=True)
        way = gr.Radio(
            WAYS, value=ONE_SET, label="Several files at once are", elem_classes="segmented ways", elem_id="way"
        )
    return upload, way


def _folder_tab() -> tuple[Any, Any]:
    with gr.Tab("From this server"):
        reason = sources.folder_reason()
        html(Markup('<p class="note">{}</p>').format(reason), visible=bool(reason))
        with gr.Row(visible=not reason):
            folder = gr.Dropdown(
                [], multiselect=True, label="Files in the folders that may be used", elem_id="folder", scale=4
            )
            add = gr.Button("Add", variant="primary", size="md", scale=0, elem_id="add-folder")
    return folder, add


def _hub_tab() -> list[Any]:
    with gr.Tab("From the hub"):
        reason = sources.hub_reason()
        html(Markup('<p class="note">{}</p>').format(reason), visible=bool(reason))
        with gr.Row(visible=not reason):
            name = gr.Textbox(label="Data set", placeholder="owner/name", elem_id="hub-name", scale=3)
            split = gr.Textbox("train", label="Split", scale=1)
            config = gr.Textbox(label="Configuration", placeholder="its default", scale=1)
            revision = gr.Textbox(label="Revision", placeholder="main", scale=1)
            fetch = gr.Button("Fetch", variant="primary", size="md", scale=0, elem_id="fetch-hub")
    return [name, split, config, revision, fetch]
