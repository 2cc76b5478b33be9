"""The allocator's overhead beyond the forecast, learned from finished runs on the same GPU model."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from sqlmodel import col, select

from training.forecast.gpus import Card
from worker.store import database
from worker.store.tables import Run, Status

RUNS = 20
"""The newest runs that count."""
LEAST = 3
"""With fewer runs, the constant of training/forecast/forecast.py is used."""


@dataclass(frozen=True)
class Calibration:
    """`slack`: reserved memory beyond live tensors, as a share of the memory that changes within a step; and the number of runs."""

    slack: float
    runs: int

    @property
    def note(self) -> str:
        return (
            f"The allocator's overhead is {self.slack:.0%} of the memory that changes within a step, "
            f"as measured in {self.runs} runs on this GPU model."
        )


def known(card: Card | None) -> Calibration | None:
    """The calibration of a GPU model: the median over its newest finished runs; None for fewer than LEAST."""
    slacks = measured_on(card, slack_of)
    return Calibration(max(0.0, median(slacks)), len(slacks)) if len(slacks) >= LEAST else None


def measured_on(card: Card | None, figure_of: Callable[[Run], float | None]) -> list[float]:
    """A figure of the newest finished runs on a GPU model (training/forecast/gpus.py), of those that have it."""
    if card is None or not database.has_tables():
        return []
    on_card = col(Run.forecast)["card"].as_string() == card.name
    newest = select(Run).where(Run.status == Status.FINISHED, on_card).order_by(col(Run.finished_at).desc())
    with database.read_everything() as session:
        figures = [figure_of(run) for run in session.exec(newest.limit(RUNS))]
    return [figure for figure in figures if figure is not None]


def slack_of(run: Run) -> float | None:
    """The largest reserved memory of a rank beyond the forecast, as a share of the changing memory; None if unknown."""
    reserved = ((run.summary or {}).get("memory") or {}).get("reserved_bytes")
    moving = (run.forecast or {}).get("moving_bytes")
    if not reserved or not moving or run.forecast is None:
        return None
    return float((max(reserved) - run.forecast["allocated_bytes"]) / moving)
