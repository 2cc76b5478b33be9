"""The diagnosis of an uploaded log, for the page Diagnose and the REST API."""

from typing import Any, BinaryIO

from app.access import callers
from training.config.fields import ConfigError
from training.errors import Problem
from training.model_info.config_json import Dimensions, read_dimensions
from worker.diagnosis.diagnosis import diagnose
from worker.diagnosis.log_file import read_log
from worker.runs.settle import find_model


def with_log(log: BinaryIO, model: str | None = None, micro_batch: int | None = None) -> tuple[dict[str, Any], str]:
    """The diagnosis of a log as a JSON value (`worker.diagnosis.diagnosis.Diagnosis.document`), and the text of what was read.

    Raises:
        ConfigError: the log is empty, or the caller may not read `model`.
        ModelError: `model` is not a readable model folder or config.json.
    """
    parts = read_log(log)
    if not any(part.text.strip() for part in parts):
        raise ConfigError([Problem("log", None, "is empty.", "Send the output of the training run.")])
    text = "\n... lines left out ...\n".join(part.text for part in parts)
    return diagnose(parts, dimensions=dimensions(model), micro_batch=micro_batch).document(), text


def dimensions(model: str | None) -> Dimensions | None:
    """The dimensions of a model; None without one.

    Raises:
        ConfigError: the caller may not read it.
        ModelError: it is not a readable model folder or config.json.
    """
    if not model:
        return None
    find_model(model, callers.current().allowed)
    return read_dimensions(model)
