"""Deletes a sweep with its runs. It is marked first, so that a worker finishes what a killed process began."""

import contextlib

from sqlmodel import col
from sqlmodel import delete as delete_from

from worker.store import database, runs, shares, sweeps
from worker.store.runs import NotEnded, RunNotFound
from worker.store.tables import Sweep


def delete(sweep_id: str) -> None:
    """Deletes a sweep whose runs have all ended: their results, checkpoints and metrics, and their folders.

    Raises:
        SweepNotFound: there is no such sweep.
        SweepActive: one of its runs is queued or running; nothing is deleted.
    """
    with database.write() as session:
        sweep = sweeps.locked(session=session, sweep_id=sweep_id)
        active = [run for run in sweeps.runs_of(session=session, sweep_ids=[sweep.id]) if not run.status.ended]
        if active:
            message = f"has {len(active):,} queued or running runs."
            raise sweeps.SweepActive("sweep", sweep.id, message, "Stop the sweep before you delete it.")
        sweep.deleted_at = database.now(session=session)
        marked = sweep.id
    finish(marked)


def finish(sweep_id: str) -> None:
    """Deletes the runs of a marked sweep, each in its own transaction, then the sweep. It can be repeated at any time.

    A run that was resumed meanwhile stays, and is no longer part of a sweep.
    """
    with database.read_everything() as session:
        run_ids = [run.id for run in sweeps.runs_of(session=session, sweep_ids=[sweep_id])]
    for run_id in run_ids:
        with contextlib.suppress(RunNotFound), database.write() as session:
            try:
                runs.delete(session=session, run_id=run_id)
            except NotEnded:
                runs.locked(session=session, run_id=run_id).sweep_id = None
    with database.write() as session:
        shares.remove(session=session, kind="sweep", object_ids=[sweep_id])
        session.exec(delete_from(Sweep).where(col(Sweep.id) == sweep_id))


def finish_all() -> None:
    """Finishes every deletion that was interrupted: a worker's round."""
    with database.read_everything() as session:
        found = sweeps.deleted(session=session)
    for sweep_id in found:
        finish(sweep_id)
