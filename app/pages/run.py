"""The page Run, at /run?id=RUN_ID: one run, live. It reads the database and nothing else, so closing it changes nothing."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import gradio as gr
from markupsafe import Markup

from app import callers, changes
from app.callers import Forbidden
from app.downloads import adapter_path
from app.pages import run_data, run_memory, run_parts
from app.pages.parts import QUIET, database_away, each, html
from app.pages.run_data import Drawing, Snapshot
from training.fields import ConfigError
from worker.archive import GGUF_FILE, MERGED_FILE
from worker.models import Request, Status
from worker.patience import UNREACHABLE
from worker.runs import NotResumable, NotRunning, RunNotFound

SMOOTHINGS = [("as measured", 0.0), ("smoothed", 0.7), ("very smooth", 0.92)]
LIVE_SECONDS, ENDED_SECONDS = 3.0, 20.0
_CHART = (
    '<p class="note chart-empty">Nothing has been measured yet: the charts begin with the first step.</p>'
    '<div class="chart" hidden></div>'
)
_STOP = Markup(
    "<h2>Stop this run?</h2><p>It saves a checkpoint at the next step and then leaves. Nothing that was trained is lost: "
    "Resume goes on from that checkpoint. A run that has not begun to train stops at once.</p>"
)


@dataclass(frozen=True)
class Sent:
    """What a viewer's page shows now, so that only what is new is sent."""

    version: str = ""
    drawing: Drawing | None = None
    parts: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Page:
    """The components that handlers write."""

    missing: gr.HTML
    body: gr.Column
    heading: gr.HTML
    stop: gr.Button
    resume: gr.Button
    step_down: gr.Button
    links: gr.HTML
    standing: gr.HTML
    trouble: gr.HTML
    attempts: gr.HTML
    chart: gr.HTML
    results: gr.HTML
    events: gr.HTML
    configuration: gr.HTML
    log: gr.HTML
    timer: gr.Timer

    @property
    def parts(self) -> list[Any]:
        """What `_parts` has values for, in its order."""
        return [
            self.heading, self.stop, self.resume, self.step_down, self.links, self.standing, self.trouble,
            self.attempts, self.results, self.events, self.configuration, self.log, self.timer,
        ]  # fmt: skip


def build(demo: gr.Blocks) -> None:
    """Components, handlers and wiring of the page."""
    sent = gr.State(Sent())
    missing = html(visible=False)
    with gr.Column(visible=False, elem_classes="run-page") as body:
        with gr.Row(elem_classes="title-row"):
            heading = html()
            stop = gr.Button("Stop", size="md", visible=False, scale=0, elem_id="stop")
            resume = gr.Button("Resume", size="md", visible=False, scale=0, elem_id="resume")
            step_down = gr.Button("Resume", size="md", variant="primary", visible=False, scale=0, elem_id="step-down")
            links = html()
        refused = html()
        standing, trouble, attempts = html(), html(), html()
        with gr.Row(elem_classes="two-columns"):
            with gr.Column(scale=3), gr.Column(elem_classes="card charts"):
                with gr.Row(elem_classes="chart-controls"):
                    html(Markup('<h2>Charts</h2><p class="hint">Drag to zoom, double-click to reset.</p>'))
                    log_loss = gr.Checkbox(label="Logarithmic loss", container=False, elem_id="log-loss")
                    smoothing = gr.Radio(
                        SMOOTHINGS,
                        value=0.0,
                        label="Smoothing",
                        show_label=False,
                        container=False,
                        elem_classes="segmented",
                        elem_id="smoothing",
                    )
                chart = gr.HTML(
                    html_template=_CHART,
                    js_on_load="lathe.chart(element, props, watch)",
                    apply_default_css=False,
                    elem_id="chart",
                )
            with gr.Column(scale=2):
                results, events, configuration = html(), html(), html()
        log = html(script="lathe.follow(element, watch)", classes="log-place")
        with gr.Column(visible=False, elem_classes="dialog") as dialog, gr.Column(elem_classes="card"):
            html(_STOP)
            with gr.Row():
                keep = gr.Button("Keep running", elem_classes="dialog-cancel")
                confirm = gr.Button("Stop and save", variant="stop", elem_id="confirm-stop")
    timer = gr.Timer(LIVE_SECONDS)
    page = Page(
        missing, body, heading, stop, resume, step_down, links, standing, trouble, attempts, chart, results, events,
        configuration, log, timer,
    )  # fmt: skip
    everything = [sent, page.missing, page.body, page.chart, *page.parts]
    look = [log_loss, smoothing, sent]
    demo.load(opened, [log_loss, smoothing], everything, **QUIET)
    timer.tick(looked, look, everything, **QUIET)
    gr.on([log_loss.change, smoothing.change], looked, look, everything, trigger_mode="always_last", **QUIET)
    stop.click(lambda: gr.update(visible=True), None, dialog, **QUIET)
    keep.click(lambda: gr.update(visible=False), None, dialog, **QUIET)
    confirm.click(stopped, look, [dialog, refused, *everything], **QUIET)
    resume.click(resumed, look, [refused, *everything], **QUIET)
    step_down.click(resumed_lower, look, [refused, *everything], **QUIET)


def opened(log_loss: bool, smoothing: float, request: gr.Request) -> list[Any]:
    """The page of the run that the address names, or one that says there is none."""
    return looked(log_loss, smoothing, Sent(), request)


def looked(log_loss: bool, smoothing: float, before: Sent, request: gr.Request) -> list[Any]:
    """What is new since the page was last sent; mostly nothing. All of it where the server was started again since."""
    return show(_asked_for(request), log_loss, smoothing, before)


def stopped(log_loss: bool, smoothing: float, before: Sent, request: gr.Request) -> list[Any]:
    """Asks the run to stop and closes the dialogue; where that is refused, the page says why."""
    refusal = _refusal(changes.stop, request)
    return [gr.update(visible=False), refusal, *looked(log_loss, smoothing, before, request)]


def resumed(log_loss: bool, smoothing: float, before: Sent, request: gr.Request) -> list[Any]:
    """Queues the run again; where that is refused, the page says why."""
    return [_refusal(changes.resume, request), *looked(log_loss, smoothing, before, request)]


def resumed_lower(log_loss: bool, smoothing: float, before: Sent, request: gr.Request) -> list[Any]:
    """Queues the run again with the settings proposed when its memory ran out."""
    return [_refusal(partial(changes.resume, step_down=True), request), *looked(log_loss, smoothing, before, request)]


def _refusal(ask: Callable[[str], object], request: gr.Request) -> Markup:
    """Asks for what a button stands for. Why it is refused, or nothing."""
    try:
        ask(_asked_for(request))
    except (Forbidden, NotRunning, NotResumable, RunNotFound, ConfigError) as error:
        return Markup('<div class="alert" role="alert">{}</div>').format(str(error))
    except UNREACHABLE:
        return database_away()
    finally:
        run_data.forget()
    return Markup("")


def _asked_for(request: gr.Request) -> str:
    """The run that the page's address names; the server itself remembers none."""
    return str(request.query_params.get("id", ""))


def show(run_id: str, log_loss: bool, smoothing: float, before: Sent) -> list[Any]:
    """The page's outputs for a viewer who was last sent `before`; what has not changed is skipped."""
    try:
        snapshot = run_data.look(run_id)
    except RunNotFound as error:
        return _nothing_there(str(error) if run_id else "The address names no run.", before)
    except UNREACHABLE:
        return _unreadable()
    version = snapshot.version
    drawing = run_data.drawing(snapshot, log_loss=log_loss, smoothing=smoothing)
    if version == before.version and drawing == before.drawing:
        return [gr.skip()] * (4 + _PARTS)
    chart = gr.skip() if drawing == before.drawing else run_data.figure(drawing, snapshot.events)
    parts = _parts(snapshot)
    old = before.parts or (None,) * _PARTS
    news = [gr.skip() if part == shown else part for part, shown in zip(parts, old, strict=True)]
    seen = [gr.skip(), gr.skip()] if before.parts else [gr.update(visible=False), gr.update(visible=True)]
    return [Sent(version, drawing, tuple(parts)), *seen, chart, *news]


def _unreadable() -> list[Any]:
    """Says so above what was shown; the next reading that succeeds sends everything again."""
    told = gr.update(value=database_away(), visible=True)
    return [Sent(), told, *[gr.skip()] * (2 + _PARTS)]


def _nothing_there(reason: str, before: Sent) -> list[Any]:
    told = gr.update(value=run_parts.missing(reason), visible=True)
    return [before, told, gr.update(visible=False), *[gr.skip()] * _PARTS, gr.Timer(active=False)]


_PARTS = 13


def _parts(snapshot: Snapshot) -> list[Any]:
    """The values of `Page.parts`, in its order."""
    run = snapshot.run
    stopping, lower = run.request is Request.STOP, run_memory.proposal(run)
    mine = callers.current().may_change(run.owner)
    return [
        run_parts.heading(run),
        gr.update(
            visible=mine and not run.status.ended, interactive=not stopping, value="Stopping" if stopping else "Stop"
        ),
        gr.update(visible=mine and run.status in (Status.FAILED, Status.STOPPED)),
        gr.update(visible=mine and bool(lower), value=lower),
        _links(snapshot),
        run_parts.standing(run, snapshot.queue),
        run_parts.trouble(run, snapshot.log),
        run_memory.attempts(snapshot.attempts),
        run_parts.results(run),
        run_parts.happenings(snapshot.events),
        run_parts.configuration(run, snapshot.dataset_names),
        run_parts.printed(snapshot.log),
        gr.update(value=ENDED_SECONDS if run.status.ended else LIVE_SECONDS),
    ]


def _links(snapshot: Snapshot) -> Markup:
    run = snapshot.run
    links = [("", f"/new?clone={run.id}", "", "Clone"), ("", f"/api/runs/{run.id}/config.yaml", "download", "YAML")]
    if adapter_path(run):
        what = "model" if run.config.get("method") == "full" else "adapter"
        links.append(("primary", f"/api/runs/{run.id}/adapter.zip", "download", f"Download {what}"))
    for file, label in ((MERGED_FILE, "Merged model"), (GGUF_FILE, "GGUF")):
        if adapter_path(run, file):
            links.append(("", f"/api/runs/{run.id}/{file}", "download", label))
    return Markup('<div class="links">{}</div>').format(each('<a class="button {}" href="{}" {}>{}</a>', links))
