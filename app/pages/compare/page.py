"""The page Compare, at /compare?runs=ID,ID,...: it only reads the database, and its address holds the whole view."""

from dataclasses import dataclass, replace
from typing import Any

import gradio as gr

from app.documents.comparison.document import Comparison, compare
from app.pages.common.cache import TimedCache
from app.pages.common.html import QUIET, database_unreachable, html
from app.pages.common.run_plots import plotted, run_plots
from app.pages.common.viewers import Viewers, changes, pace
from app.pages.compare import html as parts_html
from app.pages.compare import table_html
from app.pages.compare.view import View
from worker.store import database
from worker.store.database import UNREACHABLE

LIVE_SECONDS, ENDED_SECONDS = 3.0, 20.0
_SCRIPT = "lathe.compare(element, trigger, watch)"
_NAMES = ("compare-head", "compare-notices", "compare-results", "compare-against", "compare-settings")


@dataclass(frozen=True)
class Shown:
    """What a page shows: the view, its parts as HTML, the runs in its plots, and its refresh interval."""

    view: View
    parts: tuple[str, ...]
    plotted: str = ""
    seconds: float = ENDED_SECONDS


_viewers: Viewers[Shown] = Viewers()
_comparisons: TimedCache[tuple[tuple[str, ...], bool], Comparison] = TimedCache(seconds=1.0)


def build(demo: gr.Blocks) -> None:
    """Components, handlers and wiring of the page."""
    with gr.Column(elem_classes="compare-page"):
        with gr.Row(elem_classes="title-row"):
            head = html(script=_SCRIPT, classes=_NAMES[0])
            add = html(parts_html.add_field(), script="lathe.addRun(element, trigger)", classes="compare-add")
        notices, results, against, settings = (html(script=_SCRIPT, classes=name) for name in _NAMES[1:])
        plots = run_plots()
    timer = gr.Timer(LIVE_SECONDS)
    parts = [head, notices, results, against, settings]
    outputs = [*parts, plots, timer]
    demo.load(opened, None, outputs, **QUIET)
    timer.tick(ticked, None, outputs, **QUIET)
    for part in (add, *parts):
        part.select(controlled, None, outputs, **QUIET)


def opened(request: gr.Request) -> list[Any]:
    """The page of the view in its address."""
    return _viewers.serve(request.session_hash, lambda _: _send(show(View.of(request.query_params)), None))


def ticked(request: gr.Request) -> list[Any]:
    """The parts that changed; all of them after a restart of the server."""
    return _viewers.serve(request.session_hash, lambda before: _send(show(_view(before, request)), before))


def controlled(event: gr.EventData, request: gr.Request) -> list[Any]:
    """The page after a run was added or removed, a column sorted, or the switch of settings used."""
    action: dict[str, Any] = event._data if isinstance(event._data, dict) else {}
    return _viewers.serve(
        request.session_hash, lambda before: _send(show(_view(before, request).changed(action)), before)
    )


def show(view: View) -> Shown:
    """The page for a view."""
    try:
        comparison = _comparisons.get((view.runs, view.all_settings), lambda: _read(view))
    except UNREACHABLE:
        return Shown(view, ("", str(database_unreachable()), "", "", ""), seconds=LIVE_SECONDS)
    view = _with_full_ids(view, comparison)
    live = any(not run.status.ended for run in comparison.runs)
    parts = (
        parts_html.heading(view, comparison),
        parts_html.notices(view, comparison),
        table_html.results(view, comparison),
        table_html.against(comparison),
        table_html.settings(view, comparison),
    )
    return Shown(view, tuple(map(str, parts)), plotted(comparison.runs), LIVE_SECONDS if live else ENDED_SECONDS)


def _read(view: View) -> Comparison:
    with database.read() as session:
        return compare(session, view.runs, all_settings=view.all_settings)


def _with_full_ids(view: View, comparison: Comparison) -> View:
    """The view with the whole ids of its runs; ids of no run stay, after them."""
    missing = [str(error.problem.value) for error in comparison.missing]
    return replace(view.showing([*(run.id for run in comparison.runs), *missing]), dropped=view.dropped)


def _view(before: Shown | None, request: gr.Request) -> View:
    return before.view if before else View.of(request.query_params)


def _send(now: Shown, before: Shown | None) -> tuple[Shown, list[Any]]:
    """What the page shows now, and the outputs that changed."""
    changed = changes((*now.parts, now.plotted), (*before.parts, before.plotted) if before else None)
    return now, [*changed, pace(now.seconds, before.seconds if before else None)]
