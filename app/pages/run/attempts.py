"""The attempts of a run with their settings, phases and out-of-memory reports, for the page Run. Pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.format import numbers
from app.texts import _
from training.config.fields import in_words
from training.run_folder.events import OutOfMemory
from training.run_folder.memory_words import facts
from worker.store.history import PhaseBegan
from worker.store.tables import Attempt, Run, Status

_INTERRUPTED = "training"


@dataclass(frozen=True)
class Phase:
    """A phase of an attempt: `seconds` in all its `times`, its share of the attempt, and `since` when the current one counts.

    `key` is its name in events, `name` that of the page.
    """

    key: str
    name: str
    seconds: float
    share: float
    times: int
    since: float | None

    @property
    def each(self) -> float | None:
        """The seconds of one of several interruptions of training: what a checkpoint or an evaluation costs."""
        return self.seconds / self.times if self.times > 1 and self.key != _INTERRUPTED else None


def listed(attempts: Sequence[Attempt], *, explained: bool) -> list[dict[str, Any]]:
    """Each attempt with its changed settings and its outcome; none for a single attempt with enough memory.

    `explained`: the page says elsewhere why the last one ended.
    """
    if len(attempts) < 2 and not any(attempt.out_of_memory for attempt in attempts):
        return []
    return [
        {
            "number": attempt.number,
            "settings": in_words(attempt.stepped_down) or _("unchanged"),
            "outcome": _outcome(attempt, with_reason=not (explained and attempt is attempts[-1])),
            "memory": facts(OutOfMemory(**attempt.out_of_memory)) if attempt.out_of_memory else [],
        }
        for attempt in attempts
    ]


def proposal(run: Run, *, continues: bool) -> str:
    """The label of the button that resumes with settings that need less memory; empty without a proposal."""
    proposed = (run.error or {}).get("step_down") if run.status is Status.FAILED else None
    label = _("Resume with {settings}") if continues else _("Train from the start with {settings}")
    return label.format(settings=in_words(proposed)) if proposed else ""


def timelines(attempts: Sequence[Attempt], events: Sequence[PhaseBegan], now: float) -> list[tuple[int, list[Phase]]]:
    """The number and the phases of each attempt that has begun one, the latest attempt first."""
    begun = {event.attempt for event in events}
    return [
        (attempt.number, _phases([event for event in events if event.attempt == attempt.number], attempt.ended_at, now))
        for attempt in reversed(attempts)
        if attempt.number in begun
    ]


def _phases(events: Sequence[PhaseBegan], ended: float | None, now: float) -> list[Phase]:
    """The phases of an attempt by their first start; `ended` is when the attempt ended, None while it runs."""
    seconds: dict[str, float] = {}
    for event, end in zip(events, [*(later.time for later in events[1:]), ended or now], strict=True):
        seconds[event.message] = seconds.get(event.message, 0.0) + max(end - event.time, 0.0)
    whole = sum(seconds.values()) or 1.0
    times = Counter(event.message for event in events)
    current = None if ended else events[-1].message
    return [
        Phase(name, _(name), took, round(took / whole, 2), times[name], now - took if name == current else None)
        for name, took in seconds.items()
    ]


def _outcome(attempt: Attempt, *, with_reason: bool) -> str:
    if attempt.ended_at is None:
        return _("running")
    duration = numbers.duration(attempt.ended_at - attempt.started_at)
    ended = _("{outcome} after {time}.").format(outcome=_(str(attempt.outcome)), time=duration)
    return f"{ended} {attempt.reason}".strip() if with_reason else ended
