"""The latest diagnoses of the installation: failed runs from the database, shared logs from their folder."""

from app.pages.common.cache import TimedCache
from app.pages.diagnose.html import Recent, address
from worker.runs import shared_diagnoses
from worker.store import database
from worker.store.listed import run_list
from worker.store.tables import Run, Status

MOST = 10

_recent: TimedCache[None, list[Recent]] = TimedCache(seconds=2.0)


def latest() -> list[Recent]:
    """The last ten diagnoses, the newest first, at most two seconds old."""
    return _recent.get(None, _read)


def forget() -> None:
    """Clears the cache, after a diagnosis was shared or deleted."""
    _recent.clear()


def _read() -> list[Recent]:
    with database.read() as session:
        failed = run_list.listing(session=session, status=Status.FAILED, order_by="finished_at", limit=2 * MOST)
        diagnosed = [recent for run in failed if (recent := _of_run(run)) is not None]
    shared = [
        Recent(address(one.id), f"Log of {one.owner}", one.diagnosis["title"], one.diagnosis["cause"], one.created_at)
        for one in shared_diagnoses.listing(MOST)
    ]
    return sorted([*diagnosed, *shared], key=lambda one: one.when, reverse=True)[:MOST]


def _of_run(run: Run) -> Recent | None:
    diagnosis = (run.error or {}).get("diagnosis")
    if not diagnosis or run.finished_at is None:
        return None
    return Recent(f"/run?id={run.id}", run.name, diagnosis["title"], diagnosis["cause"], run.finished_at)
