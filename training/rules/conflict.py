"""A rule is a function that yields a conflict for each group of settings that exclude each other."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from training.config.applies import APPLIES
from training.config.fields import settings
from training.config.machine import Machine
from training.config.peft_methods import method_of
from training.config.run_config import RunConfig


@dataclass(frozen=True)
class Conflict:
    """Settings that cannot (`blocking`) or should not be combined, the reason, and `changes` (setting to value) that fix it."""

    settings: tuple[str, ...]
    reason: str
    fix: str
    changes: dict[str, Any]
    blocking: bool = True


Rule = Callable[[RunConfig, Machine], Iterator[Conflict]]
_SUBJECT_OF = "_rule_of"  # set by `rule`


def rule(function: Rule) -> Rule:
    """Marks a function as one of its module's rules."""
    setattr(function, _SUBJECT_OF, function.__module__)
    return function


def rules_in(subject: ModuleType) -> list[Rule]:
    """The rules that a module defines, in order of definition."""
    return [value for value in vars(subject).values() if getattr(value, _SUBJECT_OF, None) == subject.__name__]


def settings_without_effect(config: RunConfig) -> Iterator[Conflict]:
    """Yields a warning for each changed setting without effect; 0, false and empty values are ignored."""
    values = config.model_dump(mode="json")
    for name, condition in APPLIES.items():
        default = settings()[name].default
        if getattr(config, name) == default or not values[name] or condition.when(values):
            continue
        decider = condition.decider(values)
        decided = values[decider]
        by = f"with {decider} {decided}" if decided else f"without {decider}"
        yield Conflict(
            (name, decider),
            f"{name} has no effect {by}.",
            _fix(config, name, default),
            {name: default},
            blocking=False,
        )


def _fix(config: RunConfig, name: str, default: Any) -> str:
    reset = "Leave it empty." if default is None else f"Reset it to its default, {default}."
    known, option = method_of(config.method), name.removeprefix("lora_")
    if APPLIES[name].decides == "method" and known and option in known.options:
        reset += f" Set {option} of {config.method} in method_options."
    return f"It applies to {APPLIES[name].words}. {reset}"
