"""The diagnosis of a log that somebody sends: what the page Diagnose and the REST API answer."""

from typing import Any, BinaryIO

from app import callers
from training.fields import ConfigError, Problem
from training.model_files import ModelError
from worker.diagnosis import diagnose
from worker.log_file import read_log
from worker.model_dimensions import Dimensions, read_dimensions


def of_stream(log: BinaryIO, model: str | None = None, micro_batch: int | None = None) -> dict[str, Any]:
    """The diagnosis of a log as a JSON value (`worker.diagnosis.Diagnosis.document`).

    Raises:
        ConfigError: the log is empty, or `model` is no model's folder or config.json that may be read.
    """
    parts = read_log(log)
    if not any(part.text.strip() for part in parts):
        raise ConfigError([Problem("log", None, "is empty.", "Send what the training printed.")])
    return diagnose(parts, shape=_dimensions(model), micro_batch=micro_batch).document()


def _dimensions(model: str | None) -> Dimensions | None:
    if not model:
        return None
    if problem := callers.current().reach.model(model):
        raise ConfigError([problem])
    try:
        return read_dimensions(model)
    except ModelError as error:
        raise ConfigError([Problem("model", model, error.message, error.fix)]) from None
