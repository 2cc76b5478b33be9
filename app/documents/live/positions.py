"""Where the steps of a run lie on the axes of its plots: step, tokens, epoch and time since the start."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sqlmodel import Session

from worker.store import series
from worker.store.series import Series
from worker.store.tables import Run, RunEvent

AXES = ("step", "tokens", "epoch", "time")
_POINTS = 2000
_MARKED = ("checkpoint", "resumed", "out_of_memory", "stop", "stopped", "failed", "requeued")
_MOST_EVALUATIONS = 60

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Positions:
    """Steps, ascending, and their places on the other axes that the run has reported."""

    step: Numbers
    others: dict[str, Numbers]

    @property
    def axes(self) -> list[str]:
        """The axes to choose from."""
        return [axis for axis in AXES if axis == "step" or axis in self.others]

    def of_steps(self, axis: str, steps: Iterable[float]) -> Numbers:
        """The places of steps on an axis."""
        wanted = np.asarray(list(steps), dtype=float)
        return wanted if axis == "step" else np.interp(wanted, self.step, self.others[axis])

    def step_at(self, axis: str, place: float) -> float:
        """The step at a place on an axis."""
        return place if axis == "step" else float(np.interp(place, self.others[axis], self.step))

    def everywhere(self, step: float) -> dict[str, float]:
        """The place of a step on each axis."""
        return {axis: _short(float(self.of_steps(axis, [step])[0])) for axis in self.axes}


def positions(session: Session, run: Run) -> Positions:
    """The places of the run's steps, from its metrics `tokens` and `epoch` and the times of its losses."""
    lines = {
        line.name: line
        for line in series.series(session=session, run_id=run.id, names=("loss", "tokens", "epoch"), points=_POINTS)
    }
    if "loss" not in lines:
        return Positions(np.zeros(0), {})
    loss = lines["loss"]
    start = run.started_at or loss.time[0]
    steps = np.asarray(loss.step, dtype=float)
    others = {"time": np.maximum.accumulate(np.maximum(np.asarray(loss.time) - start, 0.0))}
    for name in ("tokens", "epoch"):
        if name in lines:
            others[name] = np.interp(steps, lines[name].step, _ends(lines[name]))
    return Positions(steps, others)


def marks(
    places: Positions, events: Sequence[RunEvent], evaluations: Sequence[int], start: float
) -> list[dict[str, object]]:
    """Events and evaluations with their places. An event without a step has the place of its time."""
    if not len(places.step):
        return []
    listed = [
        (
            event.kind,
            event.message,
            event.step if event.step is not None else places.step_at("time", event.time - start),
        )
        for event in events
        if event.kind in _MARKED
    ]
    if len(evaluations) <= _MOST_EVALUATIONS:
        listed += [("evaluation", f"Evaluation after step {step:,}.", step) for step in evaluations]
    return [{"kind": kind, "text": text, "at": places.everywhere(step)} for kind, text, step in listed]


def _ends(line: Series) -> list[float]:
    """The last value of each point of a series that never falls: its highest."""
    return [float(value or 0) for value in line.high or line.value]


def _short(place: float) -> float:
    return int(place) if place == int(place) else round(place, 3)
