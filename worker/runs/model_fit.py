"""What a model cannot do with the settings of a run, told before it is queued."""

import struct
from collections.abc import Iterator
from pathlib import Path

from training.config.name_values import as_names
from training.config.peft_methods import is_pattern
from training.config.run_config import RunConfig
from training.errors import Problem
from training.model_info.config_json import read_config, text_config
from training.model_info.folder import ModelFacts, misspelled, module_names

_NAMED = 12


def model_problems(config: RunConfig, facts: ModelFacts) -> Iterator[Problem]:
    """The settings that cannot work with this model."""
    if facts.path is None:
        yield from _misspelled(config)
        return
    yield from _no_target(config, facts.path)


def _misspelled(config: RunConfig) -> Iterator[Problem]:
    """A name that is taken for a hub id, and is nearly that of a folder here."""
    if config.revision is None and (folder := misspelled(config.model)):
        fix = f"Write {folder}. For the model of the hub with the name given, set revision (main)."
        message = "is no folder of this machine, and nearly the name of one."
        yield Problem("model", config.model, message, fix, {"model": str(folder)})


def _no_target(config: RunConfig, folder: Path) -> Iterator[Problem]:
    """Names of target modules of which the model has none. Experts have other names in memory than in the files."""
    named = config.target_modules
    by_name = config.method.adapts and named not in ("auto", "all-linear") and not is_pattern(named)
    if not by_name or any("expert" in key for key in text_config(read_config(folder))):
        return
    try:
        modules = module_names(folder)
    except (OSError, ValueError, KeyError, struct.error):
        return  # the folder's weights were refused before
    if any(module == name or module.endswith(f".{name}") for name in as_names(named) for module in modules):
        return
    last = sorted({module.rpartition(".")[2] for module in modules if not module.rpartition(".")[2].isdigit()})
    fix = f"Choose among {', '.join(last[:_NAMED])}, or set target_modules to auto."
    yield Problem("target_modules", named, "match no module of the model.", fix, {"target_modules": "auto"})
