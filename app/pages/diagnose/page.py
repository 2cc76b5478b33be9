"""The page Diagnose, at /diagnose: why a run failed, from its pasted or uploaded log.

Lathe stores the log only if its user shares the diagnosis, which then is at /diagnose?id=ID.
"""

import io
import re
from dataclasses import dataclass
from typing import Any, BinaryIO

import gradio as gr
from markupsafe import Markup

from app.access import callers, changes
from app.documents.diagnoses import Recent, recent
from app.pages.common.cache import TimedCache
from app.pages.common.diagnosis import diagnosis_html
from app.pages.common.html import QUIET, database_unreachable, html, not_found, title, user_error_html
from app.pages.common.upload_box import deleted_afterwards, uploads_only
from app.pages.diagnose.html import NO_LOG, deleted_html, recent_html, shared_html, unshared_html
from app.web import log_diagnosis
from training.config.fields import ConfigError
from training.errors import Problem, UserError
from worker.runs import shared_diagnoses
from worker.runs.shared_diagnoses import DiagnosisNotFound
from worker.store.database import UNREACHABLE

_EXAMPLE = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "train.py", line 71, in <module>
[rank1]:     trainer.train()
[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 12.43 GiB. GPU 1 has a total capacity of 31.74 GiB ..."""
_SCRIPT = "lathe.diagnosis(element, trigger, watch)"
_UNSHARED_SECONDS = 3600.0  # for which a diagnosis can be shared

_recent_cache: TimedCache[None, list[Recent]] = TimedCache(seconds=2.0)


@dataclass(frozen=True)
class Unshared:
    """The latest diagnosis of an open page, with its log, which only this process holds."""

    diagnosis: dict[str, Any]
    log: str


_unshared: TimedCache[str, Unshared | None] = TimedCache(_UNSHARED_SECONDS, size=50)


def build(demo: gr.Blocks) -> None:
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
            result = html(NO_LOG, script=_SCRIPT, classes="diagnosis-result")
            recent_list = html(script=_SCRIPT, classes="recent-list")
    about = [model, batch]
    demo.load(opened, None, [result, recent_list], **QUIET)
    ask.click(diagnosed, [log, *about], result, **QUIET)
    upload.upload(dropped, [upload, *about], [upload, result], **QUIET)
    result.select(changed, None, [result, recent_list], **QUIET)


def opened(request: gr.Request) -> list[Any]:
    """The shared diagnosis that the address names, if it names one, and the recent ones."""
    diagnosis_id = str(request.query_params.get("id") or "")
    return [_shared(diagnosis_id) if diagnosis_id else gr.skip(), _recent()]


def changed(event: gr.EventData, request: gr.Request) -> list[Any]:
    """The page after a diagnosis was shared or deleted, or why not."""
    action: dict[str, Any] = event._data if isinstance(event._data, dict) else {}
    try:
        shown = _delete(str(action["delete"])) if "delete" in action else _share(request.session_hash or "")
    except DiagnosisNotFound as error:
        return [_missing(error), _recent()]
    except (UserError, OSError) as error:
        return [_refused(error, request.session_hash or "", action), _recent()]
    _recent_cache.clear()
    return [shown, _recent()]


def diagnosed(log: str | None, model: str | None, batch: str | None, request: gr.Request) -> str:
    """The diagnosis of a pasted log, or the problem with an input."""
    if not log or not log.strip():
        return NO_LOG
    return _answer(io.BytesIO(log.encode("utf-8", "replace")), model, batch, request)


def dropped(path: str | None, model: str | None, batch: str | None, request: gr.Request) -> list[Any]:
    """The diagnosis of an uploaded log file, which is then deleted."""
    if path is None:
        return [gr.skip(), gr.skip()]
    with deleted_afterwards([path]) as (file,), file.open("rb") as log:
        return [None, _answer(log, model, batch, request)]


def _answer(log: BinaryIO, model: str | None, batch: str | None, request: gr.Request) -> Markup:
    try:
        diagnosis, text = log_diagnosis.with_log(log, (model or "").strip() or None, _rows(batch))
    except UserError as error:
        return user_error_html(error)
    if request.session_hash:
        _unshared.put(request.session_hash, Unshared(diagnosis, shared_diagnoses.shortened(text)))
    return unshared_html(diagnosis_html(diagnosis))


def _share(session: str) -> Markup:
    """Shares the latest diagnosis of the page.

    Raises:
        ConfigError: the page has none, or not any more.
    """
    latest = _unshared.get(session, lambda: None)
    if latest is None:
        raise ConfigError([Problem("log", None, "is no longer held.", "Press Diagnose again, then Share.")])
    shared = shared_diagnoses.share(diagnosis=latest.diagnosis, log=latest.log, owner=callers.current().name)
    return shared_html(shared, allowed=True)


def _delete(diagnosis_id: str) -> Markup:
    changes.delete_shared_diagnosis(diagnosis_id)
    return deleted_html()


def _refused(error: UserError | OSError, session: str, action: dict[str, Any]) -> Markup:
    """Why sharing or deleting failed, above what the page showed."""
    message = (
        user_error_html(error)
        if isinstance(error, UserError)
        else Markup('<div class="alert" role="alert"><b>Could not store the log.</b> {}.</div>').format(error.strerror)
    )
    latest = _unshared.get(session, lambda: None)
    if "delete" in action:
        return message + _shared(str(action["delete"]))
    return message + (unshared_html(diagnosis_html(latest.diagnosis)) if latest else NO_LOG)


def _shared(diagnosis_id: str) -> Markup:
    try:
        shared = shared_diagnoses.get(diagnosis_id)
    except DiagnosisNotFound as error:
        return _missing(error)
    return shared_html(shared, allowed=callers.current().may_change(shared.owner))


def _missing(error: DiagnosisNotFound) -> Markup:
    return not_found("Shared diagnosis not found", str(error), "/diagnose", "Diagnose a log")


def _recent() -> Markup:
    try:
        return recent_html(_recent_cache.get(None, recent))
    except UNREACHABLE:
        return database_unreachable()


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
