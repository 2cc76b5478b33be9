"""A rule is a function that yields a conflict for each group of settings that exclude each other."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from training.config.machine import Machine
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
