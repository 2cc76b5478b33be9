"""The page Diagnose, at /diagnose: why a run failed, from its pasted or uploaded log. Lathe does not store the log."""

import io
import re
from typing import Any, BinaryIO

import gradio as gr
from markupsafe import Markup

from app.pages.common.diagnosis import diagnosis_html
from app.pages.common.html import QUIET, html, title, user_error_html
from app.pages.common.upload_box import deleted_afterwards, uploads_only
from app.web import log_diagnosis
from training.config.fields import ConfigError
from training.errors import Problem, UserError

_EXAMPLE = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "train.py", line 71, in <module>
[rank1]:     trainer.train()
[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 12.43 GiB. GPU 1 has a total capacity of 31.74 GiB ..."""
_EMPTY = Markup(
    '<div class="empty"><h2>No log yet</h2><p>Paste the output of a training run, or upload its log file. '
    "You will see the cause, the evidence, the rank that failed first, and the fix.</p></div>"
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
                gr.File(label="Or upload a log file", height=64, elem_classes="upload", elem_id="log-file")
            )
            with gr.Row(elem_classes="settings"):
                model = gr.Textbox(
                    label="Model",
                    info="Folder or config.json of the model, to name the tensor that did not fit.",
                    elem_id="model",
                    elem_classes=["setting", "text"],
                )
                batch = gr.Textbox(
                    label="Micro batch size",
                    info="Rows per forward pass, if the log does not contain it.",
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
    """The diagnosis of a pasted log, or the problem with an input."""
    return _EMPTY if not log or not log.strip() else _answer(io.BytesIO(log.encode("utf-8", "replace")), model, batch)


def dropped(path: str | None, model: str | None, batch: str | None) -> list[Any]:
    """The diagnosis of an uploaded log file, which is then deleted."""
    if path is None:
        return [gr.skip(), gr.skip()]
    with deleted_afterwards([path]) as (file,), file.open("rb") as log:
        return [None, _answer(log, model, batch)]


def _answer(log: BinaryIO, model: str | None, batch: str | None) -> Markup:
    try:
        return diagnosis_html(log_diagnosis.of_stream(log, (model or "").strip() or None, _rows(batch)))
    except UserError as error:
        return user_error_html(error)


def _rows(batch: str | None) -> int | None:
    """The micro batch size as a number.

    Raises:
        ConfigError: it is not a whole number from 1 up.
    """
    typed = (batch or "").strip()
    if typed and not re.fullmatch(r"[1-9][0-9]{0,8}", typed):
        fix = "Enter the rows per forward pass, or leave it empty."
        raise ConfigError([Problem("micro_batch", typed, "is not a whole number from 1 up.", fix)])
    return int(typed) if typed else None
