"""The part "Take away" of the page Run: every form of the result, snippets that use it, and the answers before and after."""

from typing import Any

import gradio as gr
from markupsafe import Markup

from app.documents.results.answers import Answer, Change, answers_of, counts
from app.documents.results.outputs import outputs, used_by_snippets
from app.documents.results.snippets import snippets
from app.pages.common.html import QUIET, html, id_of, note_html
from app.pages.run import take_away_html
from app.words.numbers import plural
from worker.runs.verification import latest
from worker.serving.models import offered
from worker.store import database, runs
from worker.store.database import UNREACHABLE
from worker.store.runs import RunNotFound
from worker.store.tables import Run

ALL, PAGE_ROWS = "all", 25
_SECONDS = 10.0


def build(demo: gr.Blocks) -> None:
    """Components, handlers and wiring of the part; it appears when the run has ended."""
    shown = gr.State("")
    page = gr.State(0)
    forms = html(script="lathe.copies(element); lathe.variants(element)")
    with gr.Column(visible=False, elem_classes="card answers") as column:
        with gr.Row(elem_classes="answers-head"):
            html(Markup("<h2>Answers before and after</h2>"))
            kind = gr.Radio(
                [ALL], value=ALL, label="Change", show_label=False, container=False, elem_classes="segmented",
                elem_id="answer-kind",
            )  # fmt: skip
        table = html()
        with gr.Row(elem_classes="answers-foot"):
            place = html()
            earlier = gr.Button("Previous", size="sm", scale=0, interactive=False, elem_id="answers-previous")
            later = gr.Button("Next", size="sm", scale=0, interactive=False, elem_id="answers-next")
    timer = gr.Timer(_SECONDS)
    rows = [table, place, earlier, later, page]
    demo.load(refreshed, [shown], [shown, forms, column, kind, *rows, timer], **QUIET)
    timer.tick(refreshed, [shown], [shown, forms, column, kind, *rows, timer], **QUIET)
    kind.change(first_page, [kind], rows, **QUIET)
    earlier.click(previous_page, [kind, page], rows, **QUIET)
    later.click(next_page, [kind, page], rows, **QUIET)


def refreshed(shown: str, request: gr.Request) -> list[Any]:
    """The part for the run in the address: empty until it ends, unchanged if `shown` is its present version."""
    unchanged = [gr.skip()] * 9
    try:
        with database.read() as session:
            run = runs.get(session=session, run_id=id_of(request))
            if not run.status.ended or shown == _version(run):
                return [*unchanged, gr.skip()]
            used = used_by_snippets(session, run)
    except (RunNotFound, *UNREACHABLE):
        return [*unchanged, gr.skip()]
    answers = answers_of(run.id)
    forms = take_away_html.panel_of(
        run, outputs(run), snippets(used) if used else [], latest(run), can_be_tried=bool(offered(run))
    )
    kinds = gr.update(choices=_choices(answers), value=ALL)
    return [
        _version(run),
        forms,
        gr.update(visible=bool(answers)),
        kinds,
        *_rows(answers, ALL, 0),
        gr.Timer(_SECONDS * 3),
    ]


def first_page(kind: str, request: gr.Request) -> list[Any]:
    """The first answers of a kind of change."""
    return _rows(answers_of(id_of(request)), kind, 0)


def previous_page(kind: str, page: int, request: gr.Request) -> list[Any]:
    """The answers before those shown."""
    return _rows(answers_of(id_of(request)), kind, page - 1)


def next_page(kind: str, page: int, request: gr.Request) -> list[Any]:
    """The answers after those shown."""
    return _rows(answers_of(id_of(request)), kind, page + 1)


def _rows(answers: tuple[Answer, ...], kind: str, page: int) -> list[Any]:
    """The table, its place in the list, both buttons, and the page's number."""
    wanted = [answer for answer in answers if kind in (ALL, answer.change)]
    page = max(0, min(page, (len(wanted) - 1) // PAGE_ROWS))
    start, end = page * PAGE_ROWS, min((page + 1) * PAGE_ROWS, len(wanted))
    place = f"{start + 1:,} to {end:,} of {plural(len(wanted), 'row')}" if wanted else ""
    return [
        take_away_html.answer_table(wanted[start:end]),
        note_html(place),
        gr.update(interactive=page > 0),
        gr.update(interactive=end < len(wanted)),
        page,
    ]


def _choices(answers: tuple[Answer, ...]) -> list[tuple[str, str]]:
    numbers = counts(answers)
    kinds = [(f"{change.value.capitalize()} ({numbers[change]:,})", change.value) for change in Change]
    return [(f"All ({len(answers):,})", ALL), *kinds]


def _version(run: Run) -> str:
    """A text that changes with what the part shows, files that an export makes included."""
    sizes = [(output.name, output.bytes, output.note) for output in outputs(run)]
    return f"{run.id} {run.status.value} {run.attempt} {run.name} {sizes} {latest(run)}"
