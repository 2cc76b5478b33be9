"""The page Diagnose, at /diagnose: a log, pasted or dropped, and why its run failed. Nothing of it is kept."""

import io
import re
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import gradio as gr
from markupsafe import Markup

from app import log_diagnosis
from app.pages.data import uploads_only
from app.pages.diagnosis_parts import diagnosis_html
from app.pages.parts import QUIET, each, html, title
from training.fields import ConfigError, Problem

_EXAMPLE = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "train.py", line 71, in <module>
[rank1]:     trainer.train()
[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 12.43 GiB. GPU 1 has a total capacity of 31.74 GiB ..."""
_EMPTY = Markup(
    '<div class="empty"><h2>No log yet</h2><p>Paste what a training run printed, or drop its log file, of any program. '
    "The cause, the lines that show it, the rank that failed first and what mends it stand here then.</p></div>"
)


def build(demo: gr.Blocks) -> None:  # noqa: ARG001 every page takes it
    """Components, handlers and wiring of the page."""
    title("Diagnose a log")
    with gr.Row(elem_classes="two-columns"):
        with gr.Column(scale=2, elem_classes="card"):
            with gr.Row(elem_classes="settings"):
                log = gr.Textbox(
                    label="Log",
                    lines=14,
                    max_lines=14,
                    placeholder=_EXAMPLE,
                    elem_id="log",
                    elem_classes=["setting", "buttons", "paste"],
                )
            upload = uploads_only(
                gr.File(label="Or drop a log file", height=64, elem_classes="upload", elem_id="log-file")
            )
            with gr.Row(elem_classes="settings"):
                model = gr.Textbox(
                    label="Model",
                    info="Its folder or config.json: tells which tensor it was.",
                    elem_id="model",
                    elem_classes=["setting", "text"],
                )
                batch = gr.Textbox(
                    label="Micro batch",
                    info="Rows in one forward pass, where the log does not say.",
                    elem_id="micro-batch",
                    elem_classes=["setting", "text"],
                )
            ask = gr.Button("Diagnose", variant="primary", elem_id="diagnose")
        with gr.Column(scale=3):
            result = html(_EMPTY)
    about = [model, batch]
    ask.click(diagnosed, [log, *about], result, **QUIET)
    upload.upload(dropped, [upload, *about], [upload, result], **QUIET)


def diagnosed(log: str | None, model: str | None, batch: str | None) -> str:
    """What a pasted log tells, or what is wrong with what was typed."""
    return _EMPTY if not log or not log.strip() else _answer(io.BytesIO(log.encode("utf-8", "replace")), model, batch)


def dropped(path: str | None, model: str | None, batch: str | None) -> list[Any]:
    """What a file tells; the upload is gone afterwards."""
    if path is None:
        return [gr.skip(), gr.skip()]
    try:
        with Path(path).open("rb") as log:
            return [None, _answer(log, model, batch)]
    finally:
        Path(path).unlink(missing_ok=True)
        with suppress(OSError):  # another upload of the same bytes may still be in its folder
            Path(path).parent.rmdir()


def _answer(log: BinaryIO, model: str | None, batch: str | None) -> Markup:
    try:
        return diagnosis_html(log_diagnosis.of_stream(log, (model or "").strip() or None, _rows(batch)))
    except ConfigError as error:
        told = [
            (problem.field, str(problem.value or "")[:200], problem.message, problem.fix) for problem in error.problems
        ]
        return each('<div class="alert" role="alert"><b>{}</b> <code>{}</code> {} <em>{}</em></div>', told)


def _rows(batch: str | None) -> int | None:
    """The micro batch as a number.

    Raises:
        ConfigError: it is none.
    """
    typed = (batch or "").strip()
    if typed and not re.fullmatch(r"[1-9][0-9]{0,8}", typed):
        fix = "Give the rows of a micro batch, or leave it empty."
        raise ConfigError([Problem("micro_batch", typed, "is not a whole number from 1 up.", fix)])
    return int(typed) if typed else None
