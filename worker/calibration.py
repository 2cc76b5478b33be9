"""What torch's allocator holds beyond the forecast, learned from the runs that finished on the same kind of card."""

from dataclasses import dataclass
from statistics import median

from sqlmodel import Session, col, select

from training.cards import Card
from worker import database
from worker.models import Run, Status

RUNS = 20
"""The newest runs that count."""
LEAST = 3
"""Runs below which the constant of training/memory.py is taken."""


@dataclass(frozen=True)
class Calibration:
    """`slack`: what is held beyond what is live, as a share of all that comes and goes within a step; of how many runs."""

    slack: float
    runs: int

    @property
    def note(self) -> str:
        return (
            f"The allocator's slack is {self.slack:.0%} of what comes and goes within a step, as measured: "
            f"from {self.runs} runs on this card."
        )


def known(card: Card | None) -> Calibration | None:
    """The calibration of a card where the database has one."""
    if card is None or not database.has_tables():
        return None
    with database.read() as session:
        return calibrated(session=session, card=card.name)


def calibrated(*, session: Session, card: str) -> Calibration | None:
    """The median over the newest finished runs on the card of that name (training/cards.py); None for fewer than LEAST."""
    forecast = col(Run.forecast)
    newest = select(Run).where(Run.status == Status.FINISHED, forecast["card"].as_string() == card)
    found = [slack_of(run) for run in session.exec(newest.order_by(col(Run.finished_at).desc()).limit(RUNS))]
    measured = [slack for slack in found if slack is not None]
    return Calibration(max(0.0, median(measured)), len(measured)) if len(measured) >= LEAST else None


def slack_of(run: Run) -> float | None:
    """What the run's fullest rank had reserved beyond the forecast, as a share of what comes and goes; None where not known."""
    reserved = ((run.summary or {}).get("memory") or {}).get("reserved_bytes")
    moving = (run.forecast or {}).get("moving_bytes")
    if not reserved or not moving or run.forecast is None:
        return None
    return float((max(reserved) - run.forecast["allocated_bytes"]) / moving)
