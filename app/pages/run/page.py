"""The page Run, at /run?id=RUN_ID: one run, live. It only reads the database, so closing it changes nothing."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import gradio as gr
from markupsafe import Markup

from app.access import callers, changes
from app.pages.common import viewers
from app.pages.common.dialog import dialog
from app.pages.common.html import QUIET, database_unreachable, each, html, id_of, not_found, plain_problem, share_button
from app.pages.run import evaluations, other_processes, take_away
from app.pages.run import html as parts_html
from app.pages.run import snapshot as snapshots
from app.pages.run.attempts import attempts_html, phases_html, proposal
from app.pages.run.failure import failure
from app.pages.run.html import data_sets
from app.pages.run.snapshot import Snapshot
from app.web.downloads import adapter_path
from app.words.runs import result_noun
from training.errors import UserError
from training.run_folder.paths import GGUF_FILE, MERGED_FILE
from worker.store.database import UNREACHABLE
from worker.store.runs import RunNotFound
from worker.store.tables import Request

_PLOTS = '<div class="plots"></div>'
_STOP = Markup(
    "<h2>Stop this run?</h2><p>It saves a checkpoint after the current step and exits. Resume continues from that "
    "checkpoint. A run that has not started training stops immediately.</p>"
)


@dataclass(frozen=True)
class Sent:
    """What a browser shows, so that the server sends only changes."""

    version: str = ""
    parts: tuple[Any, ...] = ()


def build(demo: gr.Blocks) -> None:
    """Components, handlers and wiring of the page."""
    sent = gr.State(Sent())
    missing = html(visible=False)
    with gr.Column(visible=False, elem_classes="run-page") as body:
        with gr.Row(elem_classes="title-row"):
            heading = html()
            stop = gr.Button("Stop", size="md", visible=False, scale=0, elem_id="stop")
            resume = gr.Button("Resume", size="md", visible=False, scale=0, elem_id="resume")
            elsewhere = gr.Button("Resume on ...", size="md", visible=False, scale=0, elem_id="resume-elsewhere")
            # The box of a failed run has the button that a person sees; it presses this one.
            step_down = gr.Button("Resume", visible=False, elem_id="step-down", elem_classes="behind")
            links = html()
        refused = html()
        failed, progress, phases, attempts = html(), html(), html(), html()
        with gr.Row(elem_classes="two-columns"):
            with gr.Column(scale=3), gr.Column(elem_classes="card charts"):
                plots = gr.HTML(
                    html_template=_PLOTS,
                    js_on_load="lathe.runPlots(element, props, watch)",
                    apply_default_css=False,
                    elem_id="plots",
                )
            with gr.Column(scale=2):
                results, events, configuration = html(), html(), html()
        take_away.build(demo)
        evaluations.build(demo)
        html(Markup('<section class="panel log-viewer"></section>'), script="lathe.runLog(element)")
        asks = dialog("Stop and save", "confirm-stop", _STOP, "Keep running")
        resuming = other_processes.build()
    news = html(Markup('<div class="run-news"></div>'), script="lathe.runNews(element, trigger)")
    parts = [
        heading, stop, resume, elsewhere, step_down, links, progress, phases, failed, attempts, results, events, configuration,
    ]  # fmt: skip
    everything = [sent, missing, body, plots, *parts]  # the values of `_parts` are in the order of `parts`
    demo.load(opened, None, everything, **QUIET)
    news.select(refreshed, [sent], everything, trigger_mode="always_last", **QUIET)
    stop.click(lambda: gr.update(visible=True), None, asks.box, **QUIET)
    asks.confirm.click(stopped, [sent], [asks.box, refused, *everything], **QUIET)
    resume.click(resumed, [sent], [refused, *everything], **QUIET)
    elsewhere.click(asked_for_processes, None, resuming.opening, **QUIET)
    chosen = [sent, resuming.strategy, resuming.processes]
    resuming.confirm.click(resumed_elsewhere, chosen, [resuming.box, resuming.refused, *everything], **QUIET)
    step_down.click(resumed_with_less_memory, [sent], [refused, *everything], **QUIET)


def opened(request: gr.Request) -> list[Any]:
    """The page of the run in the address, or "Run not found"."""
    return refreshed(Sent(), request)


def refreshed(before: Sent, request: gr.Request) -> list[Any]:
    """The outputs that changed since `before`; all of them after a restart of the server."""
    return show(id_of(request), before)


def stopped(before: Sent, request: gr.Request) -> list[Any]:
    """Requests a stop and closes the dialog; shows why if that is refused."""
    refusal = _refusal(changes.stop, request)
    return [gr.update(visible=False), refusal, *refreshed(before, request)]


def resumed(before: Sent, request: gr.Request) -> list[Any]:
    """Requeues the run; shows why if that is refused."""
    return [_refusal(changes.resume, request), *refreshed(before, request)]


def asked_for_processes(request: gr.Request) -> list[Any]:
    """Opens the dialog that asks for strategy and number of processes, or shows in it why the run cannot be read."""
    try:
        return other_processes.opened(snapshots.current(id_of(request)).run)
    except (RunNotFound, *UNREACHABLE) as error:
        return [gr.update(visible=True), gr.skip(), gr.skip(), plain_problem(error)]


def resumed_elsewhere(before: Sent, strategy: str, processes: str, request: gr.Request) -> list[Any]:
    """Requeues the run with this strategy and number of processes; the dialog stays and shows why if that is refused."""
    refusal = _refusal(other_processes.change(strategy, processes), request)
    return [gr.update(visible=bool(refusal)), refusal, *refreshed(before, request)]


def resumed_with_less_memory(before: Sent, request: gr.Request) -> list[Any]:
    """Requeues the run with the settings proposed when it ran out of memory."""
    refusal = _refusal(partial(changes.resume, step_down=True), request)
    return [refusal, *refreshed(before, request)]


def _refusal(change: Callable[[str], object], request: gr.Request) -> Markup:
    """Makes the change. Returns why it is refused, or nothing."""
    try:
        change(id_of(request))
    except (UserError, *UNREACHABLE) as error:
        return plain_problem(error)
    finally:
        snapshots.forget()
    return Markup("")


def show(run_id: str, before: Sent) -> list[Any]:
    """The page's outputs for a browser that shows `before`; unchanged outputs are skipped."""
    try:
        snapshot = snapshots.current(run_id)
    except RunNotFound as error:
        return _not_found(str(error) if run_id else "The address has no run id.", before)
    except UNREACHABLE:
        return _unreachable()
    if snapshot.version == before.version:
        return [gr.skip()] * (4 + _PARTS)
    parts = _parts(snapshot)
    changed = viewers.changes(parts, before.parts)
    if before.parts:
        visibility, plots = [gr.skip(), gr.skip()], gr.skip()
    else:
        visibility, plots = [gr.update(visible=False), gr.update(visible=True)], json.dumps(snapshot.panels)
    return [Sent(snapshot.version, tuple(parts)), *visibility, plots, *changed]


def _unreachable() -> list[Any]:
    """An alert above the page; the next successful read sends everything again."""
    alert = gr.update(value=database_unreachable(), visible=True)
    return [Sent(), alert, *[gr.skip()] * (2 + _PARTS)]


def _not_found(reason: str, before: Sent) -> list[Any]:
    alert = gr.update(value=not_found("Run not found", reason, "/", "Show all runs"), visible=True)
    return [before, alert, gr.update(visible=False), *[gr.skip()] * (1 + _PARTS)]


_PARTS = 13


def _parts(snapshot: Snapshot) -> list[Any]:
    """The values of `parts` in `build`, in its order."""
    run = snapshot.run
    stopping, proposed = run.request is Request.STOP, proposal(run)
    allowed = callers.current().may_change(run.owner)
    resumable = allowed and run.status.resumable
    return [
        parts_html.heading(run),
        gr.update(
            visible=allowed and not run.status.ended, interactive=not stopping, value="Stopping" if stopping else "Stop"
        ),
        gr.update(visible=resumable),
        gr.update(visible=resumable),
        gr.update(visible=allowed and bool(proposed), value=proposed),
        _links(snapshot),
        parts_html.progress(run, snapshot.facts, str(snapshot.cursor)),
        phases_html(snapshot.attempts, snapshot.phases),
        failure(run, snapshot.attempts, snapshot.log, snapshot.compared),
        attempts_html(snapshot.attempts),
        parts_html.results(run) + data_sets(run, snapshot.set_losses),
        parts_html.event_list(snapshot.events),
        parts_html.configuration(run, snapshot.dataset_names),
    ]


def _links(snapshot: Snapshot) -> Markup:
    run = snapshot.run
    links = [
        ("", f"/new?clone={run.id}", "", "Clone"),
        ("", f"/new-sweep?clone={run.id}", "", "Sweep"),
        ("", f"/api/runs/{run.id}/config.yaml", "download", "YAML"),
    ]
    if adapter_path(run):
        result = result_noun(run.config)
        links.append(("primary", f"/api/runs/{run.id}/{result}.zip", "download", f"Download {result}"))
    for file, label in ((MERGED_FILE, "Merged model"), (GGUF_FILE, "GGUF")):
        if adapter_path(run, file):
            links.append(("", f"/api/runs/{run.id}/{file}", "download", label))
    shown = each('<a class="button {}" href="{}" {}>{}</a>', links) + share_button("runs", run.id, run.owner)
    return Markup('<div class="links">{}</div>').format(shown)
