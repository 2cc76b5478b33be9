"""What a cause of failure is: how it shows in a log, what it means, and what mends it. The causes are in worker/causes_*.py."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from worker.log_text import Line, Log
from worker.model_dimensions import Dimensions

LAST_OF_SUMMARY = r"(?=[^\n]*\n(?:(?!\s*exitcode)[^\n]*\n){0,5}={10,})"
"""After the exit code of a rank in torchrun's summary: it is the last one there, which is the root cause."""


class Kind(IntEnum):
    """What a sign of a cause tells, the most telling first."""

    ERROR = 0
    CONSEQUENCE = 1  # what the ranks that are left say when another one failed
    SYMPTOM = 2  # nothing ended for it


@dataclass(frozen=True)
class Sign:
    """A pattern that shows a cause, and how sure it makes of it, 0 to 1."""

    pattern: re.Pattern[str]
    confidence: float = 0.95
    kind: Kind = Kind.ERROR


def sign(pattern: str, confidence: float = 0.95, kind: Kind = Kind.ERROR) -> Sign:
    """A sign of a pattern that is matched in each line. Its named groups fill the words of the cause."""
    return Sign(re.compile(pattern, re.M), confidence, kind)


@dataclass(frozen=True)
class Known:
    """What is known beside the log: the model's dimensions, the rows of a micro batch, a run's settings."""

    dimensions: Dimensions | None = None
    micro_batch: int | None = None
    config: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Detail:
    """What a cause's own look at the log adds: sentences, evidence, fixes before the usual ones, settings, what was worked out."""

    told: str = ""
    fix: tuple[str, ...] = ()
    evidence: tuple[Line, ...] = ()
    rank: int | None = None
    changes: dict[str, Any] | None = None
    inferred: dict[str, Any] = field(default_factory=dict)


Look = Callable[[Log, int, Known], Detail]
"""A cause's own look at a log: where its sign was found (a place in `Log.lines`), and what else is known."""


@dataclass(frozen=True)
class Cause:
    """A cause of failure.

    `name` is a stable identifier. `told` says more than `title` where a sign's named groups were found. `changes` are settings of a
    run that mend it.
    """

    name: str
    title: str
    signs: tuple[Sign, ...]
    fix: tuple[str, ...]
    told: str = ""
    changes: dict[str, Any] = field(default_factory=dict)
    look: Look | None = None
