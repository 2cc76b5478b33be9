"""Successive halving: which configurations continue at a rung. Pure; worker/sweeps/advance.py applies it to the database.

The rule is that of ASHA (Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020): of those that reached a
rung so far, the best 1/factor continue. It differs in the order: nothing continues while a configuration of the sweep still waits
for a device, so on one device the rule decides as successive halving does (Jamieson and Talwalkar, AISTATS 2016), with all
results of a rung, and on several devices none is idle.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from worker.sweeps.ranking import sort_key


class State(StrEnum):
    """What the runs of a configuration do: `waiting` for a device, `held` by a user, or `paused` at a rung."""

    WAITING = "waiting"
    HELD = "held"
    RUNNING = "running"
    PAUSED = "paused"
    ENDED = "ended"


@dataclass(frozen=True)
class Contender:
    """A configuration: its number, its state, the step at which it pauses (None: it trains to its end), and its value at each
    rung that it has reached; None for a value that is missing or not finite, which ranks last."""

    number: int
    state: State
    pause_at: int | None
    values: dict[int, float | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Decision:
    """The configurations that continue, each with the next step at which it pauses, and those that are stopped."""

    promoted: dict[int, int] = field(default_factory=dict)
    stopped: tuple[int, ...] = ()


def decide(contenders: Sequence[Contender], factor: int, *, maximize: bool = False) -> Decision:
    """What happens to the paused configurations now. The same state gives the same decision, however often it is made."""
    if any(one.state is State.WAITING for one in contenders):
        return Decision()
    promoted: dict[int, int] = {}
    stopped: list[int] = []
    for rung in sorted({one.pause_at for one in contenders if one.state is State.PAUSED and one.pause_at}):
        reached = [one for one in contenders if rung in one.values]
        complete = all(rung in one.values or one.state is State.ENDED for one in contenders)
        quota = max(len(reached) // factor, 1 if complete else 0)
        live = [one for one in reached if not (one.state is State.ENDED and one.pause_at == rung)]
        live.sort(key=lambda one: (sort_key(one.values[rung], maximize=maximize), one.number))
        best = live[:quota]
        here = [one for one in live if one.state is State.PAUSED and one.pause_at == rung]
        promoted |= {one.number: rung * factor for one in here if one in best}
        if complete:
            stopped += [one.number for one in here if one not in best]
    return Decision(promoted, tuple(stopped))
