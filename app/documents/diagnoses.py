"""Diagnoses of failed runs and of shared logs, which the page Diagnose shows and REST returns. Read-only."""

from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from worker.runs import shared_diagnoses
from worker.runs.shared_diagnoses import SharedDiagnosis
from worker.store import database, run_list, sight
from worker.store.tables import Run, Status

MOST = 10


@dataclass(frozen=True)
class Recent:
    """A diagnosis of a failed run or of a shared log: its address, name and cause; `when` in epoch seconds."""

    address: str
    name: str
    title: str
    cause: str
    when: float


def address(diagnosis_id: str) -> str:
    """The address of a shared diagnosis on this server."""
    return f"/diagnose?id={diagnosis_id}"


def recent() -> list[Recent]:
    """The last ten diagnoses, the newest first."""
    with database.read() as session:
        failed = run_list.listing(session=session, status=Status.FAILED, order_by="finished_at", limit=2 * MOST)
        diagnosed = [recent for run in failed if (recent := _of_run(run)) is not None]
    listed = (one for one in shared_diagnoses.listing() if sight.user() in (None, one.owner))
    shared = [
        Recent(address(one.id), f"Log of {one.owner}", one.diagnosis["title"], one.diagnosis["cause"], one.created_at)
        for one in islice(listed, MOST)
    ]
    return sorted([*diagnosed, *shared], key=lambda one: one.when, reverse=True)[:MOST]


def document(shared: SharedDiagnosis) -> dict[str, Any]:
    """A shared diagnosis with its log and the address of its page."""
    return asdict(shared) | {"address": address(shared.id)}


def _of_run(run: Run) -> Recent | None:
    diagnosis = (run.error or {}).get("diagnosis")
    if not diagnosis or run.finished_at is None:
        return None
    return Recent(f"/run?id={run.id}", run.name, diagnosis["title"], diagnosis["cause"], run.finished_at)
