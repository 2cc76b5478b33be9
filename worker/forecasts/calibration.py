"""What the finished runs on a GPU model measured: the allocator's overhead beyond the forecast, and the speed that runs reach."""

from dataclasses import dataclass
from statistics import median, quantiles

from sqlmodel import col, select

from training.forecast.forecast import SLACK
from training.forecast.gpus import Card
from training.forecast.roofline import EFFICIENCY
from worker.store import database, json_parts
from worker.store.tables import Run, Status

RUNS = 20
"""The newest runs that count."""
LEAST = 3
"""With fewer runs that have a figure, a constant is used in its place."""


@dataclass(frozen=True)
class Calibration:
    """`slack`: reserved memory beyond live tensors, as a share of the memory that changes within a step. `efficiency`: the share of
    the roofline that runs reach, of their middle half. Each with the number of runs that say so; 0 for a constant."""

    slack: float = SLACK
    slack_runs: int = 0
    efficiency: tuple[float, float] = EFFICIENCY
    efficiency_runs: int = 0

    @property
    def note(self) -> str:
        """What the slack rests on; empty for the constant."""
        if not self.slack_runs:
            return ""
        return (
            f"The allocator's overhead is {self.slack:.0%} of the memory that changes within a step, "
            f"as measured in {self.slack_runs} runs on this GPU model."
        )


def calibrate(card: Card | None) -> Calibration:
    """The calibration of a GPU model (training/forecast/gpus.py), with medians and quartiles over its newest finished runs."""
    if card is None or not database.has_tables():
        return Calibration()
    on_card = json_parts.text(Run.forecast, "card") == card.name
    newest = select(Run).where(Run.status == Status.FINISHED, on_card).order_by(col(Run.finished_at).desc())
    with database.read_everything() as session:
        runs = [(_slack(run), _efficiency(run)) for run in session.exec(newest.limit(RUNS))]
    slacks = [slack for slack, _ in runs if slack is not None]
    shares = [share for _, share in runs if share is not None]
    slack = (max(0.0, median(slacks)), len(slacks)) if len(slacks) >= LEAST else (SLACK, 0)
    if len(shares) < LEAST:
        return Calibration(*slack)
    low, _, high = quantiles(shares, n=4, method="inclusive")
    return Calibration(*slack, (low, high), len(shares))


def _slack(run: Run) -> float | None:
    """The largest reserved memory of a rank beyond the forecast, as a share of the changing memory; None if unknown."""
    reserved = ((run.summary or {}).get("memory") or {}).get("reserved_bytes")
    moving = (run.forecast or {}).get("moving_bytes")
    if not reserved or not moving or run.forecast is None:
        return None
    return float((max(reserved) - run.forecast["allocated_bytes"]) / moving)


def _efficiency(run: Run) -> float | None:
    """The share of the roofline that a finished run reached; None if unknown."""
    ideal, rate = (run.forecast or {}).get("roofline"), (run.summary or {}).get("tokens_per_second")
    if not ideal or not rate:
        return None
    seconds = ideal["tokens"] / float(rate) - ideal["moving"]
    return min(float(ideal["compute"]) / seconds, 1.0) if seconds > 0 else None
