"""The part "Evaluations" of the page Run: queues evaluations of the run, and shows their scores and answers."""

import ast
import json
from typing import Any

import gradio as gr
from markupsafe import Markup

from app.access import changes
from app.documents.results import evaluations as document
from app.pages.common.html import QUIET, html, id_of, user_error_html
from app.pages.common.upload_box import samples
from app.pages.run import evaluation_rows, evaluations_html
from app.words import evaluations as words
from training.errors import UserError
from training.evaluation.request import ACCURACY, BASE, BUILT_IN, RESULT
from training.run_folder import checkpoints
from training.run_folder.paths import checkpoints_dir, saved_result
from worker.datasets import datasets
from worker.settings import get_settings
from worker.store import database, runs
from worker.store.database import UNREACHABLE
from worker.store.runs import RunNotFound
from worker.store.tables import Run

OWN_FILE = "own.py"
_ACTIVE_SECONDS, _IDLE_SECONDS = 2.0, 20.0


def build(demo: gr.Blocks) -> None:
    """Components, handlers and wiring of the part; it appears when the run has ended."""
    shown = gr.State("")
    with gr.Column(visible=False, elem_classes="card evaluations") as column:
        html(Markup("<h2>Evaluations</h2>"))
        with gr.Row(elem_classes="evaluation-form"):
            data = gr.Dropdown(
                [], value=None, label="Data set", allow_custom_value=True, elem_id="evaluation-data", scale=3
            )
            source = gr.Dropdown([RESULT], value=RESULT, label="Weights", elem_id="evaluation-source", scale=2)
            metrics = gr.Dropdown(
                [], value=[], label="Metrics", multiselect=True, elem_id="evaluation-metrics", scale=4
            )
            rows = gr.Number(
                value=None, precision=0, minimum=0, label="Rows (0: all)", elem_id="evaluation-rows", scale=1
            )
            start = gr.Button("Evaluate", variant="primary", scale=0, elem_id="evaluate")
        with gr.Accordion("Metrics of your own, judge, lm-eval", open=False, elem_id="evaluation-more"):
            own = gr.Code(
                language="python",
                label="Metrics: functions (prompt, answer, expected) that return a number; those with _ in front are not metrics",
                lines=4,
                max_lines=20,
                elem_id="evaluation-own",
            )
            with gr.Row():
                url = gr.Textbox(label="Judge: API address, such as http://localhost:8000/v1", elem_id="judge-url")
                model = gr.Textbox(label="Judge: model", elem_id="judge-model")
                tasks = gr.Textbox(label="lm-eval: tasks, instead of a data set", elem_id="evaluation-tasks")
            prompt = gr.Textbox(
                label="Judge: prompt with {prompt}, {answer}, {expected} (empty: rate from 0 to 10)", lines=3
            )
        refused, listed = html(), html()
        chosen = evaluation_rows.build()
    timer = gr.Timer(_ACTIVE_SECONDS)
    outputs = [shown, column, data, source, metrics, listed, chosen.chooser, timer]
    demo.load(evaluations_refreshed, [shown], outputs, **QUIET)
    timer.tick(evaluations_refreshed, [shown], outputs, **QUIET)
    asked = [data, source, metrics, rows, url, model, prompt, own, tasks]
    start.click(evaluation_started, asked, [refused, timer], **QUIET).then(
        evaluations_refreshed, [shown], outputs, **QUIET
    )
    evaluation_rows.wire(chosen, refused, lambda: gr.Timer(_ACTIVE_SECONDS), timer)


def evaluations_refreshed(shown: str, request: gr.Request) -> list[Any]:
    """The part for the run in the address: empty until it ends, unchanged if `shown` is its present version."""
    unchanged = [gr.skip()] * 8
    try:
        with database.read() as session:
            run = runs.get(session=session, run_id=id_of(request))
            found = document.listing(session, run.id) if run.status.ended else []
            names = [(item.name, item.id) for item in datasets.listing(session=session)]
    except (RunNotFound, *UNREACHABLE):
        return unchanged
    version = json.dumps([run.id, run.status, run.attempt, found, names])
    active = any(one["status"] in ("queued", "running") for one in found)
    timer = gr.Timer(_ACTIVE_SECONDS if active else _IDLE_SECONDS)
    if version == shown or not run.status.ended:
        return [*unchanged[:-1], timer]
    first = shown == ""
    starter = [(f"Starter sample: {path.name}", str(path)) for path in samples()]
    known = metric_choices(run)
    return [
        version,
        gr.update(visible=True),
        gr.update(choices=names + starter),
        gr.update(choices=sources(run), value=sources(run)[0][1]) if first else gr.update(choices=sources(run)),
        gr.update(choices=known, value=[value for _, value in known][:2]) if first else gr.skip(),
        evaluations_html.listing(found, run.id),
        evaluation_rows.choices(found),
        timer,
    ]


def evaluation_started(
    data: str | None,
    source: str,
    metrics: list[str],
    rows: float | None,
    url: str | None,
    model: str | None,
    prompt: str | None,
    own: str | None,
    tasks: str | None,
    request: gr.Request,
) -> list[Any]:
    """Queues an evaluation; returns the problems, and a quick timer."""
    values: dict[str, Any] = {"source": source, "metrics": metrics, "rows": int(rows) if rows else None}
    if url and url.strip():
        judge = {"url": url.strip(), "model": (model or "").strip()}
        judge |= {"prompt": prompt} if prompt and prompt.strip() else {}
        values |= {"judge": judge, "metrics": [*metrics, "judge"]}
    try:
        if own and own.strip():
            values |= {"own": {OWN_FILE: own}, "metrics": [*values["metrics"], *own_metrics(own)]}
        if tasks and tasks.strip():
            values |= {"lm_eval": [name.strip() for name in tasks.split(",") if name.strip()], "metrics": None}
        changes.evaluate(id_of(request), str(data or ""), values)
    except UserError as error:
        return [user_error_html(error), gr.skip()]
    return ["", gr.Timer(_ACTIVE_SECONDS)]


def own_metrics(code: str) -> list[str]:
    """The metrics in the code of a user: its functions without a leading underscore, as FILE.py:FUNCTION.

    Raises:
        UserError: the code is not valid Python, or has no such function.
    """
    try:
        body = ast.parse(code).body
    except (SyntaxError, ValueError) as error:
        line = f"line {error.lineno}: {error.msg}" if isinstance(error, SyntaxError) else str(error)
        raise UserError("metrics", OWN_FILE, f"is not valid Python: {line}.", "Correct the line.") from None
    names = [part.name for part in body if isinstance(part, ast.FunctionDef) and not part.name.startswith("_")]
    if not names:
        raise UserError("metrics", OWN_FILE, "has no function.", "Write def NAME(prompt, answer, expected).")
    return [f"{OWN_FILE}:{name}" for name in names]


def sources(run: Run) -> list[tuple[str, str]]:
    """The weights that can be evaluated: the result, the checkpoints on this machine, the model before training."""
    run_dir = get_settings().runs_dir / run.id
    kept = checkpoints.sealed(run_dir) if checkpoints_dir(run_dir).is_dir() else []
    result = [(words.source({"source": RESULT}).capitalize(), RESULT)] if saved_result(run_dir) else []
    return [*result, *((path.name, path.name) for path in kept), ("Before training", BASE)]


def metric_choices(run: Run) -> list[tuple[str, str]]:
    """The built-in metrics of the run's task; the first two are the default."""
    names = (ACCURACY,) if run.config.get("task") == "classification" else BUILT_IN
    return [(words.label(name), name) for name in names]
