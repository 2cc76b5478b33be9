"""The answers of one evaluation on the page Run: sorted by a score or a difference, page by page; stop and delete."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr
from markupsafe import Markup

from app.access import changes
from app.documents.results import evaluations as document
from app.pages.common.dialog import Dialog, dialog
from app.pages.common.html import QUIET, html, user_error_html
from app.pages.run import evaluations_html
from app.words import evaluations as words
from app.words.numbers import plural
from training.errors import UserError
from worker.store import database, evaluations
from worker.store.database import UNREACHABLE
from worker.store.evaluations import EvaluationNotFound

PAGE_ROWS = 25
NOTHING = ("no other evaluation", "")
_ORDERS = [
    ("Row", "row"), ("Lowest score first", "lowest"), ("Highest score first", "highest"), ("Most worse first", "worse"),
    ("Most better first", "better"),
]  # fmt: skip
_DELETE = Markup("<h2>Delete this evaluation?</h2><p>Its scores and answers are deleted. The run stays as it is.</p>")


@dataclass(frozen=True)
class Chosen:
    """The components of the chosen evaluation."""

    chooser: gr.Dropdown
    against: gr.Dropdown
    metric: gr.Dropdown
    order: gr.Dropdown
    table: gr.HTML
    place: gr.HTML
    previous: gr.Button
    following: gr.Button
    page: gr.State
    stop: gr.Button
    delete: gr.Button
    deleting: Dialog

    @property
    def asks(self) -> list[Any]:
        """What the table depends on."""
        return [self.chooser, self.against, self.metric, self.order]

    @property
    def shows(self) -> list[Any]:
        """The table with what belongs to it."""
        return [self.table, self.place, self.previous, self.following, self.page]


def build() -> Chosen:
    """The components."""
    with gr.Row(elem_classes="evaluation-choice"):
        chooser = gr.Dropdown([], value=None, label="Answers of", elem_id="evaluation-chooser")
        against = gr.Dropdown([NOTHING], value="", label="Compared with", elem_id="evaluation-against")
        metric = gr.Dropdown([], value=None, label="By", elem_id="evaluation-metric")
        order = gr.Dropdown(_ORDERS, value="row", label="Order", elem_id="evaluation-order")
        stop = gr.Button("Stop", size="sm", scale=0, elem_id="evaluation-stop", visible=False)
        delete = gr.Button("Delete", size="sm", scale=0, elem_id="evaluation-delete", visible=False)
    table = html()
    with gr.Row(elem_classes="answers-foot"):
        place = html()
        previous = gr.Button("Previous", size="sm", scale=0, interactive=False, elem_id="evaluation-previous")
        following = gr.Button("Next", size="sm", scale=0, interactive=False, elem_id="evaluation-next")
    asks = dialog("Delete", "confirm-delete-evaluation", _DELETE, "Keep it")
    page = gr.State(0)
    return Chosen(chooser, against, metric, order, table, place, previous, following, page, stop, delete, asks)


def wire(chosen: Chosen, refused: gr.HTML, quick: Callable[[], gr.Timer], timer: gr.Timer) -> None:
    """The handlers; `quick` makes the timer look again soon."""
    described = [chosen.against, chosen.metric, chosen.stop, chosen.delete]
    chosen.chooser.change(evaluation_chosen, [chosen.chooser], described, **QUIET).then(
        shown_first, chosen.asks, chosen.shows, **QUIET
    )
    for part in (chosen.against, chosen.metric, chosen.order):
        part.input(shown_first, chosen.asks, chosen.shows, **QUIET)
    chosen.previous.click(evaluation_rows_before, [*chosen.asks, chosen.page], chosen.shows, **QUIET)
    chosen.following.click(evaluation_rows_after, [*chosen.asks, chosen.page], chosen.shows, **QUIET)
    chosen.stop.click(evaluation_stopped, [chosen.chooser], [refused], **QUIET).then(quick, None, timer, **QUIET)
    chosen.delete.click(lambda: gr.update(visible=True), None, chosen.deleting.box, **QUIET)
    outputs = [chosen.deleting.box, refused, chosen.chooser]
    deleted = chosen.deleting.confirm.click(evaluation_deleted, [chosen.chooser], outputs, **QUIET)
    deleted.then(quick, None, timer, **QUIET)


def choices(found: Sequence[dict[str, Any]]) -> Any:
    """The evaluations to choose from. The value stays as it is."""
    return gr.update(choices=[(f"{one['id']}: {words.source(one)}, {words.data(one)}", one["id"]) for one in found])


def evaluation_chosen(evaluation_id: str | None) -> list[Any]:
    """The evaluations that it can be compared with, its metrics, and its buttons."""
    nothing = [
        gr.update(choices=[NOTHING], value=""),
        gr.update(choices=[], value=None),
        *[gr.update(visible=False)] * 2,
    ]
    if not evaluation_id:
        return nothing
    try:
        with database.read() as session:
            item = evaluations.get(session=session, evaluation_id=evaluation_id)
            others = evaluations.of_run(session=session, run_id=item.run_id)
    except (EvaluationNotFound, *UNREACHABLE):
        return nothing
    same = [
        one for one in others if one.id != item.id and one.summary and one.request["sha256"] == item.request["sha256"]
    ]
    named = [(f"{one.id}: {words.source(one.request)}", one.id) for one in same]
    usual = document.baseline(item, others)
    metrics = list((item.summary or {}).get("metrics") or {})
    return [
        gr.update(choices=[NOTHING, *named], value=usual.id if usual else ""),
        gr.update(choices=[(words.label(name), name) for name in metrics], value=metrics[0] if metrics else None),
        gr.update(visible=not item.status.ended),
        gr.update(visible=item.status.ended),
    ]


def shown_first(evaluation_id: str | None, against: str | None, metric: str | None, order: str) -> list[Any]:
    """The first rows."""
    return _rows(evaluation_id, against, metric, order, 0)


def evaluation_rows_before(evaluation_id: str, against: str | None, metric: str, order: str, page: int) -> list[Any]:
    """The rows before those shown."""
    return _rows(evaluation_id, against, metric, order, page - 1)


def evaluation_rows_after(evaluation_id: str, against: str | None, metric: str, order: str, page: int) -> list[Any]:
    """The rows after those shown."""
    return _rows(evaluation_id, against, metric, order, page + 1)


def evaluation_stopped(evaluation_id: str | None) -> Any:
    """Stops the evaluation; returns the problem."""
    try:
        changes.stop_evaluation(str(evaluation_id or ""))
    except UserError as error:
        return user_error_html(error)
    return ""


def evaluation_deleted(evaluation_id: str | None) -> list[Any]:
    """Deletes the evaluation, and closes the dialog."""
    try:
        changes.delete_evaluation(str(evaluation_id or ""))
    except UserError as error:
        return [gr.update(visible=False), user_error_html(error), gr.skip()]
    return [gr.update(visible=False), "", gr.update(value=None)]


def _rows(evaluation_id: str | None, against: str | None, metric: str | None, order: str, page: int) -> list[Any]:
    """The table, its place in the list, both buttons, and the page's number; empty without a chosen evaluation."""
    nothing = ["", "", gr.update(interactive=False), gr.update(interactive=False), 0]
    if not evaluation_id:
        return nothing
    try:
        with database.read() as session:
            item = evaluations.get(session=session, evaluation_id=evaluation_id)
            other = evaluations.get(session=session, evaluation_id=against) if against else None
    except (EvaluationNotFound, *UNREACHABLE):
        return nothing
    listed = document.ordered(document.rows(item, other, metric or ""), order, metric or "")
    page = max(0, min(page, (len(listed) - 1) // PAGE_ROWS))
    start, end = page * PAGE_ROWS, min((page + 1) * PAGE_ROWS, len(listed))
    place = f"{start + 1:,} to {end:,} of {plural(len(listed), 'row')}" if listed else ""
    return [
        evaluations_html.answers(listed[start:end], against=other is not None),
        evaluations_html.place(place, item.id if listed else ""),
        gr.update(interactive=page > 0),
        gr.update(interactive=end < len(listed)),
        page,
    ]
