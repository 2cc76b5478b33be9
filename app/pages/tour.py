"""The page Tour, at /start: what Lathe does in five steps, each with a button that does it, and which are done here."""

import hashlib
import io
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import gradio as gr
from markupsafe import Markup
from sqlmodel import Session, col, func, select

from app.access import notify, quickstart
from app.pages.common.diagnosis import diagnosis_html
from app.pages.common.html import QUIET, database_unreachable, html, problem_html, title
from app.web import log_diagnosis
from app.words import numbers
from training.errors import UserError
from training.run_folder.paths import ARCHIVE_FILE
from worker.runs import shared_diagnoses
from worker.settings import ROOT, get_settings
from worker.store import database
from worker.store.database import UNREACHABLE
from worker.store.notifications import preferences
from worker.store.tables import Dataset, Run, Status

DIAGNOSE, TAKE_AWAY = "diagnose", "take_away"
"""Steps that leave no trace but their own."""


@dataclass(frozen=True)
class Tour:
    """What is done, and the runs that the steps link to: `latest` is the newest run, `result` the newest finished one."""

    started: bool
    own_data: int
    watched: bool
    diagnosed: bool
    taken: bool
    latest: str
    result: str

    @property
    def done(self) -> int:
        """The number of steps that are done, of five."""
        return sum((self.started, self.own_data > 0, self.watched, self.diagnosed, self.taken))


def tour(session: Session) -> Tour:
    """The state of the five steps."""
    steps = preferences.tour_steps(session=session)
    newest_first = select(Run.id).order_by(col(Run.queued_at).desc(), col(Run.id).desc()).limit(1)
    latest = session.exec(newest_first).first() or ""
    result = session.exec(newest_first.where(Run.status == Status.FINISHED)).first() or ""
    trained = session.exec(select(Run.id).where(col(Run.step) > 0).limit(1)).first()
    own = select(func.count()).select_from(Dataset).where(col(Dataset.sha256).not_in(_samples()))
    return Tour(
        started=bool(latest),
        own_data=session.exec(own).one(),
        watched=trained is not None,
        diagnosed=DIAGNOSE in steps or bool(shared_diagnoses.listing()),
        taken=TAKE_AWAY in steps,
        latest=latest,
        result=result,
    )


@cache
def _samples() -> tuple[str, ...]:
    """SHA-256 of the sample data, which are no data of the user's own."""
    files = sorted(Path(ROOT / "static" / "starter").glob("*.jsonl"))
    return tuple(hashlib.sha256(file.read_bytes()).hexdigest() for file in files)


_REFRESH_SECONDS = 3.0
_LEAD = (
    "Lathe fine-tunes language models on your data and keeps every run. These five steps show all of it; a small model and sample "
    "data are included, so nothing is downloaded."
)
_TEXTS = (
    (
        "Start a run",
        "The starter model learns to write orders as JSON, with LoRA, in about a minute on two CPU cores. Lathe checks settings "
        "and memory first; then the run waits in the queue until a device is free.",
    ),
    (
        "Bring your data",
        "Upload a file of rows, import one from the hub, or choose one on the server. Lathe detects the format, and shows which "
        "rows cannot be used and which are truncated before a run is queued.",
    ),
    (
        "See it live",
        "Loss, speed and memory are drawn while the run trains. You can close the page or restart the server: the run continues, "
        "and it resumes from its last checkpoint if its machine fails.",
    ),
    (
        "Find out why a run failed",
        "Paste the log of any training program: Lathe names the cause, the lines that show it, and the first fix. The page of a "
        "failed run shows the same.",
    ),
    (
        "Take the adapter away",
        "A finished run leaves its adapter as safetensors. Take away, on the page of the run, has more forms and the code for "
        "transformers, vLLM and Ollama.",
    ),
)
_EXAMPLE = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "train.py", line 71, in <module>
[rank1]:     trainer.train()
[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 12.43 GiB. GPU 1 has a total capacity of 31.74 GiB of which \
9.08 GiB is free."""
_GO = "(address) => { if (address) window.location.assign(address) }"
_CLICKS = "lathe.sendClicks(element, trigger)"


def build(demo: gr.Blocks) -> None:
    """Components, handlers and wiring of the page."""
    with gr.Column(elem_classes="tour"):
        title("Tour")
        html(Markup('<p class="lead">{}</p>').format(_LEAD))
        address = gr.Textbox(visible=False)
        steps = [html(script=_CLICKS, classes="step-place") for _ in range(3)]
        problem = html()
        diagnose = html(script=_CLICKS, classes="step-place")
        with gr.Column(elem_classes="card", visible=False) as paste:
            log = gr.Textbox(_EXAMPLE, label="Log", lines=6, max_lines=12, elem_id="tour-log", elem_classes="setting")
            ask = gr.Button("Diagnose", variant="primary", elem_id="tour-diagnose", scale=0)
        answer = html()
        take = html(script=_CLICKS, classes="step-place")
    shown = [*steps, diagnose, take]
    demo.load(tour_steps, None, shown, **QUIET)
    gr.Timer(_REFRESH_SECONDS).tick(tour_steps, None, shown, **QUIET)
    started = steps[0].select(sample_run_started, None, [address, problem], **QUIET)
    started.then(None, address, None, js=_GO)
    diagnose.select(lambda: gr.update(visible=True), None, paste, **QUIET)
    ask.click(sample_log_diagnosed, log, [answer, *shown], **QUIET)
    take.select(adapter_taken, None, [address, *shown], **QUIET).then(None, address, None, js=_GO)


def tour_steps() -> list[Any]:
    """The five steps with what is done."""
    try:
        with database.read() as session:
            found = tour(session)
    except UNREACHABLE:
        return [database_unreachable(), *[gr.skip()] * 4]
    return _steps(found)


def _steps(found: Tour) -> list[Any]:
    run = _link("Open the newest run", f"/run?id={found.latest}") if found.latest else _later("after step 1")
    own = f"{numbers.plural(found.own_data, 'data set')} of your own" if found.own_data else ""
    take = _button("Download the adapter", "take") if found.result else _later("after a run has finished")
    return [
        _step(1, found.started, _button("Start the sample run", "start", primary=not found.started)),
        _step(2, found.own_data > 0, _link("Import data", "/datasets"), own),
        _step(3, found.watched, run),
        _step(4, found.diagnosed, _button("Paste a log", "paste")),
        _step(5, found.taken, take),
    ]


def sample_run_started() -> list[Any]:
    """Queues the sample run and opens its page."""
    try:
        return [f"/run?id={quickstart.start().id}", ""]
    except (UserError, *UNREACHABLE) as error:
        return ["", problem_html(error)]


def sample_log_diagnosed(log: str) -> list[Any]:
    """The diagnosis of the log in the field."""
    try:
        found, _ = log_diagnosis.with_log(io.BytesIO((log or "").encode("utf-8", "replace")), None, None)
        notify.add_tour_step(DIAGNOSE)
    except (UserError, *UNREACHABLE) as error:
        return [problem_html(error), *[gr.skip()] * 5]
    return [diagnosis_html(found), *tour_steps()]


def adapter_taken() -> list[Any]:
    """Starts the download of the newest finished run's adapter."""
    try:
        with database.read() as session:
            result = tour(session).result
        notify.add_tour_step(TAKE_AWAY)
    except UNREACHABLE:
        return ["", *[gr.skip()] * 5]
    packed = (get_settings().runs_dir / result / ARCHIVE_FILE).is_file()
    there = (
        f"/api/runs/{result}/{ARCHIVE_FILE}" if packed else f"/run?id={result}"
    )  # whose page says where the result is
    return [there if result else "", *tour_steps()]


def _step(number: int, done: bool, action: Markup, state: str = "") -> Markup:
    heading, text = _TEXTS[number - 1]
    mark, word = ("✓", state or "done") if done else (str(number), "")
    return Markup(
        '<section class="panel step {}"><span class="mark" aria-hidden="true">{}</span><div><h2>{}'
        '<span class="state">{}</span></h2><p>{}</p></div><div class="acts">{}</div></section>'
    ).format("done" if done else "", mark, heading, word, text, action)


def _button(label: str, action: str, *, primary: bool = False) -> Markup:
    return Markup('<button type="button" class="button {}" data-send="{}">{}</button>').format(
        "primary" if primary else "", json.dumps({action: True}), label
    )


def _link(label: str, address: str) -> Markup:
    return Markup('<a class="button" href="{}">{}</a>').format(address, label)


def _later(text: str) -> Markup:
    return Markup('<span class="faint">{}</span>').format(text)
