"""The page Runs, at /: the queue and the history, filtered, sorted and grouped by its address (/?search=...&status=...)."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import unquote

import gradio as gr
from markupsafe import Markup

from app.access import changes
from app.pages.common.dialog import dialog
from app.pages.common.html import QUIET, html, problem_html, title, user_error_html
from app.pages.runs import actions
from app.pages.runs.actions import ACTIONS, CONFIRMED, Work
from app.pages.runs.columns import sortable
from app.pages.runs.showing import Shown, changed, forget
from app.pages.runs.view import ANY, View, chosen
from training.errors import UserError
from worker.settings import get_settings
from worker.store.database import UNREACHABLE
from worker.store.listed.run_list import GROUPS
from worker.store.tables import Status

_REFRESH_SECONDS, _WORK_SECONDS = 3.0, 0.15
COLUMNS_COOKIE = "lathe_columns"
_FORGOTTEN = UserError(
    "form", None, "was opened before the server restarted.", "Copy what you typed, close the form and open it again."
)


@dataclass(frozen=True)
class Pending:
    """What the open dialog is about."""

    action: str = ""
    run_ids: tuple[str, ...] = ()
    form: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Page:
    """The components that handlers update."""

    shown: gr.State
    search: gr.Textbox
    status: gr.Radio
    queue: gr.HTML
    refusal: gr.HTML
    history: gr.HTML
    patch: gr.HTML
    outcome: gr.HTML

    @property
    def outputs(self) -> list[Any]:
        """The components of `changed`, in its order."""
        return [self.shown, self.queue, self.refusal, self.history, self.patch]


def build(demo: gr.Blocks) -> None:
    """Components, handlers and wiring of the page."""
    page = _components()
    pending, work = gr.State(Pending()), gr.State(Work())
    confirm = _confirm_dialog(page, pending, work)
    edit = _edit_dialog(page, pending)
    timer = gr.Timer(_REFRESH_SECONDS)
    shown = page.shown
    demo.load(opened, None, [page.search, page.status, *page.outputs], **QUIET)
    gr.on(
        [page.search.change, page.status.change], filtered, [page.search, page.status, shown], page.outputs,
        trigger_mode="always_last", **QUIET,
    )  # fmt: skip
    timer.tick(ticked, [page.search, page.status, shown], page.outputs, **QUIET)
    page.queue.select(queue_pressed, shown, [page.outcome, *page.outputs], trigger_mode="multiple", **QUIET)
    outputs = [pending, *confirm, *edit, page.search, page.outcome, *page.outputs]
    page.history.select(list_pressed, [shown], outputs, trigger_mode="multiple", **QUIET)


def _components() -> Page:
    title("Runs", Markup('<a class="button primary" href="/new">New run</a>'))
    queue = html(script="lathe.queue(element, trigger, watch)", classes="queue-place")
    with gr.Row(elem_classes="filters"):
        bare: dict[str, Any] = {"show_label": False, "container": False}
        example = "Search, or filter: method:lora status:failed data:alpaca loss<1.5 tag:paper"
        search = gr.Textbox(label="Search", placeholder=example, scale=3, elem_id="search", **bare)
        choices = [(value.capitalize(), value) for value in (ANY, *Status)]
        status = gr.Radio(
            choices, value=ANY, label="Status", scale=4, elem_classes="segmented", elem_id="status", **bare
        )
    refusal, outcome = html(), html(script="lathe.outcome(element, watch)", classes="outcome")
    history = html(script="lathe.runs(element, trigger, watch)", classes="history")
    patch = html(script="lathe.patchRows(element, watch)", classes="patch")
    return Page(gr.State(Shown()), search, status, queue, refusal, history, patch, outcome)


def _confirm_dialog(page: Page, pending: gr.State, work: gr.State) -> list[Any]:
    """The dialog that asks before runs are stopped or deleted, and shows the progress."""
    asks = dialog("Delete", "confirm-action")
    timer = gr.Timer(_WORK_SECONDS, active=False)
    asks.confirm.click(confirmed, pending, [work, timer, asks.confirm, asks.question], **QUIET)
    shown = [work, timer, asks.box, asks.question, page.outcome, *page.outputs]
    timer.tick(worked, [work, page.shown], shown, **QUIET)
    return asks.outputs[:3]


def _edit_dialog(page: Page, pending: gr.State) -> list[Any]:
    """The form with name, tags and notes, and with whom a run is shared."""
    with gr.Column(visible=False, elem_classes="dialog") as dialog, gr.Column(elem_classes="card"):
        heading, refused = html(), html()
        name = gr.Textbox(label="Name", elem_id="edit-name", max_length=200, elem_classes="setting")
        tags = gr.Textbox(label="Tags", info="Separated by commas.", elem_id="edit-tags", elem_classes="setting")
        notes = gr.Textbox(label="Notes", lines=4, elem_id="edit-notes", elem_classes="setting")
        about = "Accounts that see this run too, separated by commas, or * for all users."
        users = gr.Textbox(label="Shared with", info=about, elem_id="edit-users", elem_classes="setting")
        with gr.Row():
            cancel = gr.Button("Cancel", elem_classes="dialog-cancel")
            save = gr.Button("Save", variant="primary", elem_id="save-edit")
    cancel.click(lambda: gr.update(visible=False), None, dialog, **QUIET)
    fields = [name, tags, notes, users]
    saving = [pending, *fields, page.shown]
    saves = [save.click, name.submit, tags.submit, users.submit]
    gr.on(saves, edited, saving, [dialog, refused, page.outcome, *page.outputs], **QUIET)
    return [dialog, heading, refused, *fields]


def opened(request: gr.Request) -> list[Any]:
    """The page with the view in its address and the columns that this browser last chose."""
    view = View.of(request.query_params, _cookie(request.headers.get("cookie", "")))
    # Without a search in the address, what the user has typed meanwhile stays.
    fields = [view.search or gr.skip(), gr.skip() if view.status == ANY else view.status]
    return [*fields, *changed(view, Shown())]


def filtered(words: str, status: str, before: Shown) -> list[Any]:
    """The list for another search or status."""
    view = replace(before.view, search=(words or "").strip(), status=status or ANY)
    return changed(view if view == before.view else replace(view, page=1), before)


def ticked(words: str, status: str, before: Shown, request: gr.Request) -> list[Any]:
    """What has changed since the last look. Also applies a change of the fields whose own event was lost."""
    if before.list is None:  # the server restarted after the page was opened
        return changed(View.of(request.query_params, _cookie(request.headers.get("cookie", ""))), before)
    return filtered(words, status, before)


def queue_pressed(event: gr.EventData, before: Shown) -> list[Any]:
    """A change of the queue: its order, a priority, a held run, or pausing it."""
    data = event._data if isinstance(event._data, dict) else {}
    refusal: Any = ""
    try:
        _change_queue(data)
    except (UserError, *UNREACHABLE) as error:
        refusal = problem_html(error)
    forget()
    return [refusal, *changed(before.view, before)]


def _change_queue(data: Mapping[str, Any]) -> None:
    match data:
        case {"queue": "pause" | "unpause" as action}:
            changes.pause_queue(paused=action == "pause")
        case {"move": str(run_id), "before": str(before)}:
            changes.move(run_id, before or None)
        case {"hold": str(run_id), "held": bool(held)}:
            changes.edit(run_id, held=held)
        case {"priority": int(priority), "run": str(run_id)} if abs(priority) <= 1:
            changes.edit(run_id, priority=priority)


def list_pressed(event: gr.EventData, before: Shown) -> list[Any]:
    """A click in the list: another order, page, grouping or columns, or an action on the selected runs."""
    data = event._data if isinstance(event._data, dict) else {}
    if "action" in data:
        named = data.get("runs")
        return _act(str(data["action"]), list(map(str, named)) if isinstance(named, list) else [], before)
    if "search" in data:
        view = replace(before.view, search=str(data["search"])[:500], page=1)
        return [*[gr.skip()] * _DIALOGS, view.search, gr.skip(), *changed(view, before)]
    return [*[gr.skip()] * (_DIALOGS + 2), *changed(_viewed(before.view, data), before)]


_DIALOGS = 11  # pending, the confirm dialog's three and the edit dialog's seven components


def _viewed(view: View, data: Mapping[str, Any]) -> View:
    match data:
        case {"order": str(order)} if order in sortable():
            return view.ordered_by(order)
        case {"page": int(page)} if page > 0:
            return replace(view, page=page)
        case {"group": str(group)} if group in ("", *GROUPS):
            return replace(view, group=group, page=1)
        case {"columns": str(columns)}:
            return replace(view, columns=chosen(columns))
    return view


def _act(action: str, run_ids: list[str], before: Shown) -> list[Any]:
    """Does an action at once, or opens its dialog."""
    if action == "edit":
        return [*_edit(run_ids), gr.skip(), "", *[gr.skip()] * 5]
    if action in CONFIRMED:
        said, possible = actions.question(action, run_ids)
        button = gr.update(value=CONFIRMED[action], interactive=possible, visible=possible)
        asked = [Pending(action, tuple(run_ids)), gr.update(visible=True), said, button]
        return [*asked, *[gr.skip()] * 8, "", *[gr.skip()] * 5]
    outcome: Any = gr.skip()
    if action in ACTIONS:
        work = actions.begun(action, run_ids)
        while not work.ended:
            work = actions.advanced(work)
        outcome = actions.outcome_html(ACTIONS[action][0], work.outcome)
        forget()
    return [*[gr.skip()] * (_DIALOGS + 1), outcome, *changed(before.view, before)]


def _edit(run_ids: list[str]) -> list[Any]:
    values = actions.described(run_ids)
    single = len(values["ids"]) == 1
    heading = Markup("<h2>{}</h2>").format("Edit the run" if single else f"Tags of {len(values['ids']):,} runs")
    form = [
        gr.update(value=values["name"], visible=single),
        values["tags"],
        gr.update(value=values["notes"], visible=single),
        gr.update(value=values["users"], visible=single and get_settings().visibility == "own"),
    ]
    return [
        Pending("edit", tuple(values["ids"]), values),
        *[gr.skip()] * 3,
        gr.update(visible=True),
        heading,
        "",
        *form,
    ]


def edited(pending: Pending, name: str, tags: str, notes: str, users: str, before: Shown) -> list[Any]:
    """Stores the form and closes it; a refusal is shown in the form."""
    if not pending.form:  # the server was restarted
        return [gr.skip(), user_error_html(_FORGOTTEN), "", *changed(before.view, before)]
    outcome = actions.describe(pending.form, name or "", tags or "", notes or "", users or "")
    forget()
    said = actions.outcome_html("changed", outcome)
    if outcome.refused:  # the form stays open with what was typed
        return [gr.skip(), said, "", *changed(before.view, before)]
    return [gr.update(visible=False), "", said, *changed(before.view, before)]


def confirmed(pending: Pending) -> list[Any]:
    """Begins the work that the dialog asked about."""
    work = actions.begun(pending.action, list(pending.run_ids))
    return [work, gr.Timer(active=True), gr.update(interactive=False), actions.progress_html(work)]


def worked(work: Work, before: Shown) -> list[Any]:
    """Does a part of the work; at its end, closes the dialog."""
    if work.action not in ACTIONS:
        return [gr.skip(), gr.Timer(active=False), *[gr.skip()] * 8]
    work = actions.advanced(work)
    if not work.ended:
        return [work, gr.skip(), gr.skip(), actions.progress_html(work), *[gr.skip()] * 6]
    forget()
    outcome = actions.outcome_html(ACTIONS[work.action][0], work.outcome)
    return [Work(), gr.Timer(active=False), gr.update(visible=False), "", outcome, *changed(before.view, before)]


def _cookie(header: str) -> str:
    """The columns in the browser's cookie; empty if it has none."""
    try:
        found = SimpleCookie(header).get(COLUMNS_COOKIE)
    except CookieError:
        return ""
    return unquote(found.value) if found else ""
