"""The adapter that a run continues: found before the run is queued, and compared with its settings."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from training.config.choices import LoraInit
from training.config.run_config import RunConfig
from training.errors import Problem
from training.model_info.folder import ADAPTER_CONFIG
from training.regular_files import read_regular
from worker.allowed_paths import RUN_ID, adapter_folder, find_path
from worker.store import database
from worker.store.tables import Run

_FIELD, _MOST_BYTES = "init_adapter", 2**20
_SAME = {"lora_r": "r", "lora_alpha": "lora_alpha", "use_rslora": "use_rslora", "use_dora": "use_dora"}


def with_adapter_targets(config: RunConfig) -> RunConfig:
    """The configuration with the target modules of its initial adapter in the place of `auto`."""
    folder = _visible_folder(config.init_adapter) if config.init_adapter else None
    targets = _targets(_read(folder)) if folder and config.target_modules == "auto" else ""
    return config.model_copy(update={"target_modules": targets}) if targets else config


def adapter_problems(config: RunConfig) -> Iterator[Problem]:
    """Why the run cannot continue its initial adapter; each with the settings that fit it."""
    if not config.init_adapter:
        return
    if not config.method.adapts:
        fix = "Choose the method of the adapter, or leave init_adapter empty."
        yield Problem(
            _FIELD, config.init_adapter, f"needs a method with an adapter, and method is {config.method.value}.", fix
        )
        return
    folder = _visible_folder(config.init_adapter)
    if folder is None:
        fix = "Give a folder with adapter_config.json, or the id of a finished run on this machine."
        yield Problem(_FIELD, config.init_adapter, "is neither the folder of an adapter nor a run with one.", fix)
        return
    yield from _differences(config, _read(folder))


def _visible_folder(value: str) -> Path | None:
    """The adapter's folder, if it is a path or of a run that the user sees."""
    if find_path(value) is None and RUN_ID.fullmatch(value):
        with database.read() as session:
            if session.get(Run, value) is None:
                return None
    return adapter_folder(value)


def _read(folder: Path) -> dict[str, Any]:
    try:
        values = json.loads(read_regular(folder / ADAPTER_CONFIG, _MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def _differences(config: RunConfig, values: dict[str, Any]) -> Iterator[Problem]:
    kind = str(values.get("peft_type") or "").lower()
    if kind != config.method.in_peft:
        message = f"is an adapter of {kind or 'an unknown method'}, and method is {config.method.value}."
        yield Problem(_FIELD, config.init_adapter, message, "Choose its method.")
        return
    if config.lora_init is not LoraInit.DEFAULT:
        message = f"sets the first weights of the adapter, and so does lora_init {config.lora_init.value}."
        yield Problem(_FIELD, config.init_adapter, message, "Set lora_init to default.", {"lora_init": "default"})
    if not config.method.is_lora:
        return
    changes = {
        name: values[key] for name, key in _SAME.items() if key in values and values[key] != getattr(config, name)
    }
    targets = _targets(values)
    if targets and _names(targets) != _names(config.target_modules):
        changes["target_modules"] = targets
    if changes:
        differing = ", ".join(f"{name} {value}" for name, value in changes.items())
        yield Problem(
            _FIELD, config.init_adapter, f"has {differing}, and the run has other values.", "Set these.", changes
        )


def _targets(values: dict[str, Any]) -> str:
    given = values.get("target_modules")
    return given if isinstance(given, str) else ", ".join(sorted(map(str, given))) if isinstance(given, list) else ""


def _names(targets: str) -> set[str]:
    return {name.strip() for name in targets.split(",")}
