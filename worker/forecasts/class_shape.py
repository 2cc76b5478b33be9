"""The shape of a model from its class, read by a process with limits (training/models/layers.py) and stored."""

import hashlib
import json
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from training.config.choices import Task
from training.model_info.config_json import ModelError
from training.model_info.families import UnknownLayers
from training.model_info.shape import ModelShape, from_document
from worker.machine import programs
from worker.machine.programs import Limits, ProgramError
from worker.settings import get_settings

_LIMITS = Limits(8 * 2**30, seconds=120, file_bytes=2**20)


def read(config: Path, task: Task, unknown: UnknownLayers) -> ModelShape:
    """The shape of the class that transformers builds from a config.json for a task.

    The first time it takes the seconds that the training packages take to load.

    Raises:
        ModelError: transformers has no such class, or cannot be loaded here. `unknown` names the architecture.
    """
    stored = _place(config, task)
    with suppress(OSError, ValueError):
        return from_document(json.loads(stored.read_text(encoding="utf-8")))
    answer = _ask(config, task, str(unknown.problem.value))
    shape = from_document(answer)
    stored.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = stored.with_suffix(f".{id(shape)}.part")
    part.write_text(json.dumps(answer), encoding="utf-8")
    part.replace(stored)
    return shape


def _ask(config: Path, task: Task, name: str) -> Any:
    try:
        text = json.dumps({"model": str(config.resolve()), "task": task.value})
        answer = programs.run_for_json(programs.LAYERS, [], _LIMITS, text=text)
    except ProgramError as error:
        message = f"cannot say how much memory it needs: its class cannot be read here ({error})."
        fix = "Install the training packages, or forecast it on a machine that has them."
        raise ModelError(name, message, fix) from None
    if problem := answer.get("problem"):
        message = f"cannot say how much memory it needs: transformers {problem['message']}"
        raise ModelError(name, message, problem["fix"])
    return answer["shape"]


def _place(config: Path, task: Task) -> Path:
    """Where the shape is stored: by config.json, task and version of transformers."""
    try:
        library = version("transformers")
    except PackageNotFoundError:
        library = ""
    content = hashlib.sha256(config.read_bytes() + f"\n{task.value} {library}".encode()).hexdigest()
    return get_settings().data_dir / "model-shapes" / f"{content}.json"
