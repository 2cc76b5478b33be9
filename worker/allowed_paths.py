"""The files of this machine that a user may name: all, or those below allowed folders."""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.config.run_config import RunConfig
from training.config.sharding import own_deepspeed
from training.errors import Problem
from training.rewards.rewards import reward_models
from worker.settings import ROOT, get_settings

HUB_ID = re.compile(r"[\w-][\w.-]{0,95}(/[\w-][\w.-]{0,95})?")
"""The id of a model on the hub: a name and its owner's, each of at most 96 characters (huggingface_hub's `validate_repo_id`)."""
RUN_ID = re.compile(r"[\w-]{1,60}")
"""What the id of a run can be: it fits into the name of a folder, of 255 bytes."""
STARTER = ROOT / "static" / "starter"

_MODEL_FIX = "Give a hub id such as Qwen/Qwen3-0.6B, or a model in a folder of LATHE_MODEL_FOLDERS."
_WHO = "may only be set by the user who runs the server."
CODE = "is code, which only the user who runs the server may run."
CODE_FIX = "Use built-in rewards or a judge, or ask the user who runs the server."
CODE_SETTING = "reward_code"
_OWN_FIX = "Leave it out, or ask the user who runs the server to queue the run."
# Keys that name files or folders, at any depth.
_PATH_KEYS = re.compile(r".*(path|file|folder|dir|directory)")


@dataclass(frozen=True)
class AllowedPaths:
    """Folders in which data files and models may be named; None allows every path.

    `pushes`: True if a run may push its result with the hub token of the server's user."""

    data: tuple[Path, ...] | None = None
    models: tuple[Path, ...] | None = None
    pushes: bool = True

    def find(self, value: str) -> Path | None:
        """The data file or folder that `value` names; None if it does not exist or is not allowed."""
        path = find_path(value)
        return path if path is None or _within(path, self.data) else None

    def find_model(self, value: str) -> Path | None:
        """The folder or file of a model or adapter that `value` names; None if it does not exist or is not allowed. Then `value`
        is a hub id or the id of a run, or names nothing: a name does not tell what else there is of this name."""
        path = find_path(value)
        return path.absolute() if path is not None and _within(path, self.models) else None

    def model(self, value: str, field: str = "model") -> Problem | None:
        """The problem of a model outside the allowed folders, or None. Hub ids are always allowed."""
        if self.models is None or HUB_ID.fullmatch(value) or self.find_model(value):
            return None
        return Problem(field, value, "is neither a hub id nor a model in an allowed folder.", _MODEL_FIX)

    def problems(self, config: RunConfig) -> list[Problem]:
        """The problems of a configuration: a model, a folder to write to, or code that is not allowed."""
        model, pushed = self.model(config.model), config.push_to_hub
        adapter = self._adapter(config.init_adapter) if config.init_adapter else None
        teacher = self.model(config.teacher, "teacher") if config.teacher else None
        scored_by = reward_models(config.rewards) if config.task.traits.rewards_samples else []
        written = [] if self.models is None else list(_written(config))
        push = [Problem("push_to_hub", pushed, _WHO, _OWN_FIX)] if pushed and not self.pushes else []
        code = [] if self.data is None or not config.reward_code else [Problem(CODE_SETTING, None, CODE, CODE_FIX)]
        models = (model, adapter, teacher, *(self.model(one.name, "rewards") for one in scored_by))
        return [*(problem for problem in models if problem), *written, *push, *code]

    def _adapter(self, value: str) -> Problem | None:
        """The problem of an adapter that is neither in an allowed folder nor can be a run's. It is the same whether there is a file
        of this name, and that of an id of no run."""
        if self.models is None or RUN_ID.fullmatch(value) or self.find_model(value):
            return None
        return no_adapter(value)


def no_adapter(value: str) -> Problem:
    """The problem of an initial adapter that there is not, or that its user may not name."""
    fix = (
        "Give the id of a finished run on this machine, or a folder with adapter_config.json, which accounts may name only within "
        "LATHE_MODEL_FOLDERS."
    )
    return Problem("init_adapter", value, "is neither the folder of an adapter nor a run with one.", fix)


EVERYTHING = AllowedPaths()
"""For the user who runs the server, and the command line."""


def allowed(*, pushes: bool = False) -> AllowedPaths:
    """For other users: LATHE_DATA_FOLDERS, LATHE_MODEL_FOLDERS, and the starter model with its data."""
    settings = get_settings()
    data, models = ((*folders_in(text), STARTER) for text in (settings.data_folders, settings.model_folders))
    return AllowedPaths(data, models, pushes)


def find_path(value: str) -> Path | None:
    """An existing file or folder: absolute, relative to the current folder, or to the installation (static/starter)."""
    try:
        path = Path(value).expanduser()
        return next((base / path for base in (Path.cwd(), ROOT) if (base / path).exists()), None)
    except (OSError, RuntimeError, ValueError):  # too long, with a NUL, or the home of an unknown user
        return None


def folders_in(text: str) -> Iterator[Path]:
    """The folders of LATHE_DATA_FOLDERS or LATHE_MODEL_FOLDERS."""
    return (Path(part).expanduser().absolute() for part in text.split(os.pathsep) if part.strip())


def _within(path: Path, folders: tuple[Path, ...] | None) -> bool:
    """True if the path, with links resolved, is in one of the folders."""
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
    for key, value in named_paths(own_deepspeed(config) or {}):
        yield Problem("deepspeed_config", f"{key}: {json.dumps(value)}", _WHO, _OWN_FIX)


def named_paths(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """The keys of a JSON object, such as DeepSpeed's, that name a file or folder, and strings that look like paths."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from named_paths(inner, str(name))
    elif isinstance(value, list):
        for inner in value:
            yield from named_paths(inner, key)
    elif isinstance(value, str) and value and (_PATH_KEYS.fullmatch(key) or "/" in value or value[0] in "~."):
        yield key, value
