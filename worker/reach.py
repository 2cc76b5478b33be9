"""Which files of this machine somebody may name: all of them, or those below folders that the installation allows."""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.config import RunConfig
from training.deepspeed_own import given
from training.fields import Problem
from worker.settings import ROOT, get_settings

HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
STARTER = ROOT / "static" / "starter"

_MODEL_FIX = "Give a hub id such as Qwen/Qwen3-0.6B, or a folder below one that LATHE_MODEL_FOLDERS names."
_WHO = "may be set only by the user who runs the server."
_OWN_FIX = "Leave it out, or ask whoever runs the server to queue the run."
# In a DeepSpeed JSON: where it writes or reads, whatever the key's place.
_PATH_KEYS = re.compile(r".*(path|file|folder|dir|directory)")


@dataclass(frozen=True)
class Reach:
    """Folders below which data files and models may be named; None stands for all of the machine. `pushes`: a run may push its
    result with the hub token of the server's user."""

    data: tuple[Path, ...] | None = None
    models: tuple[Path, ...] | None = None
    pushes: bool = True

    def find(self, value: str) -> Path | None:
        """The data file or folder that `value` names, None where it is not there or may not be read."""
        path = find_path(value)
        return path if path is None or _within(path, self.data) else None

    def model(self, value: str, field: str = "model") -> Problem | None:
        """What keeps a model from being used: a path out of the allowed folders. A hub id is no path."""
        if self.models is None:
            return None
        path = find_path(value)
        if (path is None and HUB_ID.fullmatch(value)) or (path is not None and _within(path, self.models)):
            return None
        return Problem(field, value, "is neither a hub id nor a model in a folder that you may read.", _MODEL_FIX)

    def problems(self, config: RunConfig) -> list[Problem]:
        """What in a configuration names files that may not be: its model, and folders that the run would write to."""
        model, pushed = self.model(config.model), config.push_to_hub
        written = [] if self.models is None else list(_written(config))
        push = [Problem("push_to_hub", pushed, _WHO, _OWN_FIX)] if pushed and not self.pushes else []
        return [*([model] if model else []), *written, *push]


EVERYTHING = Reach()
"""For the user who runs the server, and the command line."""


def allowed(*, pushes: bool = False) -> Reach:
    """For everybody else: what LATHE_DATA_FOLDERS and LATHE_MODEL_FOLDERS name, and the starter model and its data."""
    settings = get_settings()
    data, models = ((*_folders(text), STARTER) for text in (settings.data_folders, settings.model_folders))
    return Reach(data, models, pushes)


def find_path(value: str) -> Path | None:
    """An existing file or folder: as given, from the current folder, or from the program's own (static/starter)."""
    try:
        path = Path(value).expanduser()
        return next((base / path for base in (Path.cwd(), ROOT) if (base / path).exists()), None)
    except (OSError, RuntimeError, ValueError):  # too long, with a NUL, or the home of a user that is not there
        return None


def _folders(text: str) -> Iterator[Path]:
    return (Path(part).expanduser().absolute() for part in text.split(os.pathsep) if part.strip())


def _within(path: Path, folders: tuple[Path, ...] | None) -> bool:
    """Whether a path leads into one of the folders, its links followed."""
    if folders is None:
        return True
    try:
        real = path.resolve()
        return any(real.is_relative_to(folder.resolve()) for folder in folders)
    except (OSError, RuntimeError):
        return False


def _written(config: RunConfig) -> Iterator[Problem]:
    if config.nvme_path:
        yield Problem("nvme_path", config.nvme_path, _WHO, _OWN_FIX)
    for key, value in _paths(given(config) or {}):
        yield Problem("deepspeed_config", f"{key}: {json.dumps(value)}", _WHO, _OWN_FIX)


def _paths(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """The keys of a DeepSpeed JSON that name a file or folder, and the strings that look like one."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _paths(inner, str(name))
    elif isinstance(value, list):
        for inner in value:
            yield from _paths(inner, key)
    elif isinstance(value, str) and value and (_PATH_KEYS.fullmatch(key) or "/" in value or value[0] in "~."):
        yield key, value
