"""Warns about settings that have no effect (see training/config/applies.py for the conditions)."""

from collections.abc import Iterator
from typing import Any

from training.config.applies import APPLIES
from training.config.fields import settings
from training.config.peft_methods import method
from training.config.run_config import RunConfig
from training.rules.conflict import Conflict


def settings_without_effect(config: RunConfig) -> Iterator[Conflict]:
    """Yields a warning for each changed setting without effect; 0, false and empty values are ignored."""
    values = config.model_dump(mode="json")
    for name, condition in APPLIES.items():
        default = settings()[name].default
        if getattr(config, name) == default or not values[name] or condition.when(values):
            continue
        decided = values[condition.decides]
        by = f"with {condition.decides} {decided}" if decided else f"without {condition.decides}"
        yield Conflict(
            (name, condition.decides),
            f"{name} has no effect {by}.",
            _fix(config, name, default),
            {name: default},
            blocking=False,
        )


def _fix(config: RunConfig, name: str, default: Any) -> str:
    reset = "Leave it empty." if default is None else f"Reset it to its default, {default}."
    known, option = method(config.method), name.removeprefix("lora_")
    if APPLIES[name].decides == "method" and known and option in known.options:
        reset += f" Set {option} of {config.method} in method_options."
    return f"It applies to {APPLIES[name].words}. {reset}"
