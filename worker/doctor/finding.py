"""What a check found."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """How good it is: a run works, works less well, or fails."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True)
class Finding:
    """What a check found of its subject, and what to do about it, or empty."""

    subject: str
    state: State
    said: str
    cure: str = ""


Check = Callable[[], Iterator[Finding]]


def judged(subject: str, said: str, *, failed: bool = False, warned: bool = False, cure: str = "") -> Finding:
    """A finding whose cure is shown only if something is wrong."""
    state = State.FAILED if failed else State.WARNING if warned else State.OK
    return Finding(subject, state, said, cure if failed or warned else "")
