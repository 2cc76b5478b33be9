"""The page Data sets, at /datasets: the stored data sets and three ways to import. Its filter is in the address (?search=...)."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr
from markupsafe import Markup

from app.access import callers, changes, dataset_imports
from app.access.intake import intakes
from app.access.permissions import Forbidden
from app.pages.common import upload_box
from app.pages.common.dialog import dialog
from app.pages.common.html import QUIET, database_unreachable, html, note_html, title
from app.pages.datasets import sources
from app.pages.datasets.html import intakes_html, list_html, refusal_html, removal_html
from app.pages.datasets.sources import ONE_SET, WAYS
from worker.datasets import datasets
from worker.datasets.datasets import DatasetInUse, DatasetNotFound
from worker.store import database, dataset_uses
from worker.store.database import UNREACHABLE

_REFRESH_SECONDS = 2.0
_HIDDEN: dict[str, Any] = {"show_label": False, "container": False}


@dataclass(frozen=True)
class Shown:
    """What a browser shows, so that the server sends only changes; `removing` is the data set in the dialog."""

    list: str = ""
    incoming: str = ""
    removing: str = ""


def build(demo: gr.Blocks) -> None:
    """Components, handlers and wiring of the page."""
    shown = gr.State(Shown())
    title("Data sets", Markup('<a class="button" href="/new">New run</a>'))
    with gr.Tabs(elem_classes="card sources"):
        upload, way = _upload_tab()
        folder, add = _folder_tab()
        *hub, fetch = _hub_tab()
    incoming = html(script="lathe.sendClicks(element, trigger)")
    with gr.Row(elem_classes="filters"):
        search: Any = gr.Textbox(label="Search", placeholder="Search name, format or id", elem_id="search", **_HIDDEN)
    listed = html(script="lathe.sets(element, trigger, watch)")
    asks = dialog("Remove", "confirm-remove")

    outputs = [shown, incoming, listed]
    inputs = [search, shown]
    demo.load(opened, None, [search, folder, *outputs], **QUIET)
    upload.upload(uploaded, [upload, way, *inputs], [upload, *outputs], **QUIET)
    add.click(added, [folder, *inputs], [folder, *outputs], **QUIET)
    fetch.click(fetched, [*hub, *inputs], outputs, **QUIET)
    gr.on([search.change], refreshed, inputs, outputs, trigger_mode="always_last", **QUIET)
    gr.Timer(_REFRESH_SECONDS).tick(refreshed, inputs, outputs, **QUIET)
    answered = [*asks.outputs[:3], *outputs]
    listed.select(pressed, inputs, answered, **QUIET)
    incoming.select(pressed, inputs, answered, **QUIET)
    asks.confirm.click(removed, inputs, answered, **QUIET)


def opened(request: gr.Request) -> list[Any]:
    """The page with the filter in its address."""
    search = str(request.query_params.get("search", ""))[:200]
    return [search, gr.update(choices=dataset_imports.folder_choices(), value=[]), *refreshed(search, Shown())]


def refreshed(search: str, before: Shown) -> list[Any]:
    """The outputs that changed since `before`."""
    incoming, listed = str(intakes_html(intakes.all(), callers.current().may_change)), _listed((search or "").strip())
    now = Shown(listed, incoming, before.removing)
    if now == before:
        return [gr.skip()] * 3
    return [now, gr.skip() if incoming == before.incoming else incoming, gr.skip() if listed == before.list else listed]


def uploaded(files: list[str] | None, way: str, search: str, before: Shown) -> list[Any]:
    """Imports the uploaded files, together or separately."""
    if files:
        sources.import_uploads([Path(file) for file in files], way)
    return [None, *refreshed(search, before)]


def added(names: list[str] | None, search: str, before: Shown) -> list[Any]:
    """Imports files from the server's folders."""
    for name in names or []:
        dataset_imports.from_folder(name)
    return [gr.update(value=[]), *refreshed(search, before)]


def fetched(name: str, split: str, config: str, revision: str, search: str, before: Shown) -> list[Any]:
    """Downloads a data set from the hub and imports it."""
    if (name or "").strip():
        dataset_imports.from_hub(name.strip(), split.strip(), config.strip(), revision.strip())
    return refreshed(search, before)


def pressed(event: gr.EventData, search: str, before: Shown) -> list[Any]:
    """A button in the list: asks before a removal, dismisses an import, or adds the sample."""
    action = event._data if isinstance(event._data, dict) else {}
    if "remove" in action:
        dataset_id = str(action["remove"])
        return [*_confirmation(dataset_id), Shown(before.list, before.incoming, dataset_id), gr.skip(), gr.skip()]
    if "dismiss" in action:
        with suppress(Forbidden):  # answered with 403 by app/web/authentication.py
            intakes.dismiss(int(action["dismiss"]))
    if action.get("sample"):
        sources.import_sample()
    return [gr.skip()] * 3 + refreshed(search, before)


def removed(search: str, before: Shown) -> list[Any]:
    """Removes the data set of the dialog, or shows there why it cannot be removed."""
    try:
        changes.remove_dataset(before.removing)
    except (DatasetInUse, Forbidden) as error:
        return [*_message(refusal_html("Could not remove the data set.", str(error))), *refreshed(search, before)]
    except DatasetNotFound:
        pass  # somebody else has removed it
    except UNREACHABLE:
        return [*_message(database_unreachable()), *refreshed(search, before)]
    return [gr.update(visible=False), gr.skip(), gr.skip(), *refreshed(search, before)]


def _confirmation(dataset_id: str) -> list[Any]:
    try:
        with database.read() as session:
            item = datasets.get(session=session, dataset_id=dataset_id)
            users = dataset_uses.users(session=session).get(dataset_id, [])
    except DatasetNotFound as error:
        return _message(refusal_html("Already removed.", str(error)))
    except UNREACHABLE:
        return _message(database_unreachable())
    removable = not any(user.needs_it for user in users)
    return [gr.update(visible=True), removal_html(item, users), gr.update(interactive=removable)]


def _message(message: Markup) -> list[Any]:
    """The dialog with a message and nothing to confirm."""
    return [gr.update(visible=True), message, gr.update(interactive=False)]


def _listed(search: str) -> str:
    try:
        with database.read() as session:
            caller, listed = callers.current(), datasets.listing(session=session)
            uploads = datasets.uploads_of(session=session, user=caller.name)
            return list_html(listed, dataset_uses.users(session=session), search, caller.may_change, uploads)
    except UNREACHABLE:
        return database_unreachable()


def _upload_tab() -> tuple[Any, Any]:
    with gr.Tab("Upload"):
        upload = upload_box.upload_box(several=True)
        way = gr.Radio(
            WAYS, value=ONE_SET, label="Import multiple files as", elem_classes="segmented ways", elem_id="way"
        )
    return upload, way


def _folder_tab() -> tuple[Any, Any]:
    with gr.Tab("From this server"):
        reason = dataset_imports.folder_reason()
        html(note_html(reason), visible=bool(reason))
        with gr.Row(visible=not reason):
            folder = gr.Dropdown(
                [], multiselect=True, label="Files in the server's data folders", elem_id="folder", scale=4
            )
            add = gr.Button("Add", variant="primary", size="md", scale=0, elem_id="add-folder")
    return folder, add


def _hub_tab() -> list[Any]:
    with gr.Tab("From the hub"):
        reason = dataset_imports.hub_reason()
        html(note_html(reason), visible=bool(reason))
        with gr.Row(visible=not reason):
            name = gr.Textbox(label="Data set", placeholder="owner/name", elem_id="hub-name", scale=3)
            split = gr.Textbox("train", label="Split", scale=1)
            config = gr.Textbox(label="Configuration", placeholder="default", scale=1)
            revision = gr.Textbox(label="Revision", placeholder="main", scale=1)
            fetch = gr.Button("Fetch", variant="primary", size="md", scale=0, elem_id="fetch-hub")
    return [name, split, config, revision, fetch]
