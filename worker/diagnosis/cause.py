"""Types of a cause of failure: its signs in a log, its meaning and its fix. The causes are in worker/diagnosis/causes/."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from training.model_info.config_json import Dimensions
from worker.diagnosis.parsing.lines import Line
from worker.diagnosis.timeline import Log


class CauseKind(IntEnum):
    """What a sign proves, the strongest first."""

    ERROR = 0
    OUTCOME = 1  # says what could not be done; an exception before it in the same chain says why
    CONSEQUENCE = 2  # printed by other ranks after one failed
    SYMPTOM = 3  # ends nothing by itself


When = Callable[[Log, int], bool]
"""A condition of a sign: from the log and the index of the line in `Log.lines`."""


@dataclass(frozen=True)
class Sign:
    """A pattern that shows a cause, with a confidence from 0 to 1. It is matched in each line; its groups fill `Cause.explanation`.

    `inside` must match a frame of the traceback that ends in the pattern, and all of `when` must hold. `notice` is true if a
    program prints it as a warning although it ends. `lasting` is true for values that are a failure if they last to the log's end.
    `fix` and `changes` take the place of those of the cause, and of its analysis, if the sign is the best: sentences in which
    `{name}` is a group, and which are left out if it did not match. `title` then takes the place of the cause's: what happened, in
    the sign's own words.
    """

    pattern: re.Pattern[str]
    confidence: float = 0.95
    kind: CauseKind = CauseKind.ERROR
    inside: re.Pattern[str] | None = None
    when: tuple[When, ...] = ()
    notice: bool = False
    lasting: bool = False
    fix: tuple[str, ...] = ()
    changes: dict[str, Any] = field(default_factory=dict)
    title: str = ""


@dataclass(frozen=True)
class Known:
    """What is known besides the log: the model's dimensions, the rows of a micro batch, the run's settings."""

    dimensions: Dimensions | None = None
    micro_batch: int | None = None
    config: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Detail:
    """What a cause's own analysis adds: sentences, fixes before the usual ones, evidence, settings, computed values.

    `title` takes the place of the cause's, and `alone` leaves out the cause's own fixes.
    """

    explanation: str = ""
    fix: tuple[str, ...] = ()
    evidence: tuple[Line, ...] = ()
    rank: int | None = None
    changes: dict[str, Any] | None = None
    inferred: dict[str, Any] = field(default_factory=dict)
    title: str = ""
    alone: bool = False


Analysis = Callable[[Log, int, Known], Detail]
"""A cause's own analysis of a log, from the index of the sign in `Log.lines` and what else is known."""


@dataclass(frozen=True)
class Cause:
    """A cause of failure.

    `name` is a stable identifier. `explanation` follows `title` if the signs matched all its named groups, and a sentence of `fix`
    is left out if they did not match those that it names. `changes` are settings that fix the run.
    """

    name: str
    title: str
    signs: tuple[Sign, ...]
    fix: tuple[str, ...]
    explanation: str = ""
    changes: dict[str, Any] = field(default_factory=dict)
    analyze: Analysis | None = None
