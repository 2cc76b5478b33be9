"""Starts, stops and deletes sweeps. All runs are stored in one transaction: a sweep is queued whole, or not at all."""

import contextlib
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from sqlmodel import col
from sqlmodel import delete as delete_from

from worker import celery_app, disk_quota
from worker.allowed_paths import EVERYTHING, AllowedPaths
from worker.runs import submit
from worker.runs.submit import Prepared
from worker.store import database, quotas, runs, shares, submissions, sweeps
from worker.store.runs import InUse, NotEnded, RunNotFound, SweepTrial
from worker.store.submissions import Submission
from worker.store.tables import LOCAL, Sweep
from worker.store.tables.sweep_values import SweepSpec
from worker.sweeps.plan import Plan, as_document, make_plan, refuse_empty

_DATA = ("data", "validation_data", "columns")


def start(
    spec: SweepSpec, *, allowed: AllowedPaths = EVERYTHING, owner: str = LOCAL, submission: Submission | None = None
) -> Sweep:
    """Plans a sweep, and queues those of its runs that can start and fit. A `submission` that was stored before returns its sweep.

    Raises:
        ConfigError: no run can start, or one is refused now; nothing is queued.
        KeyReused: the submission's key was sent with another body.
    """

    def queue() -> str:
        plan = make_plan(spec, allowed, owner)
        refuse_empty(plan)
        with ExitStack() as stack, disk_quota.measured_once():
            sweep_id, first = _store(plan, list(_prepared(stack, plan, allowed, owner)), owner, submission)
        celery_app.notify(first)
        return sweep_id

    sweep_id = submissions.once(submission, queue)
    with database.read() as session:
        return sweeps.get(session=session, sweep_id=sweep_id)


def stop(sweep_id: str) -> Sweep:
    """Requests every run of a sweep to stop; none continues afterwards.

    Raises:
        SweepNotFound: there is no such sweep.
        SweepEnded: all its runs have ended.
    """
    with database.write() as session:
        sweep = sweeps.locked(session=session, sweep_id=sweep_id)
        live = [run for run in sweeps.runs_of(session=session, sweep_ids=[sweep.id]) if not run.status.ended]
        if not live:
            message = "has ended; there is nothing to stop."
            raise sweeps.SweepEnded("sweep", sweep.id, message, "Start a new sweep to train again.")
        sweep.stopped_at = sweep.stopped_at or database.now(session=session)
        for run in live:
            runs.request_stop(session=session, run_id=run.id)
        return sweep


def _prepared(stack: ExitStack, plan: Plan, allowed: AllowedPaths, owner: str) -> Iterator[tuple[int, Prepared]]:
    """Each run that starts, with its number. Data that several runs share is imported once."""
    stored: dict[tuple[Any, ...], dict[str, Any]] = {}
    for run in plan.starting:
        config = run.candidate.config
        assert config is not None
        key = tuple(getattr(config, name) for name in _DATA)
        if known := stored.get(key):
            config = config.model_copy(update=known)
        ready = stack.enter_context(submit.prepared(config, allowed=allowed, owner=owner))
        stored.setdefault(key, ready.data.settings)
        yield run.candidate.trial, ready


def _store(plan: Plan, ready: list[tuple[int, Prepared]], owner: str, submission: Submission | None) -> tuple[str, str]:
    """Stores the sweep with its runs; returns its id and that of the first run."""
    spec = plan.spec
    pause_at = spec.min_steps if spec.halves else None
    with database.write() as session:
        values = spec.model_dump(mode="json")
        shown = as_document(plan).model_dump(mode="json")
        sweep = sweeps.create(session=session, name=spec.title, owner=owner, spec=values, plan=shown)
        if submission:
            submissions.add(session=session, submission=submission, stored_id=sweep.id)
        created = [submit.stored(session, run, trial=SweepTrial(sweep.id, number, pause_at)) for number, run in ready]
        quotas.refuse_too_many(session=session, owner=owner)
    return sweep.id, created[0].id


def delete(sweep_id: str) -> None:
    """Deletes a sweep whose runs have all ended: their results, checkpoints and metrics, and their folders.

    Raises:
        SweepNotFound: there is no such sweep.
        SweepActive: one of its runs is queued or running; nothing is deleted.
        InUse: a queued or running run loads the result of one; nothing is deleted.
    """
    with database.write() as session:
        sweep = sweeps.locked(session=session, sweep_id=sweep_id)
        members = sweeps.runs_of(session=session, sweep_ids=[sweep.id])
        active = [run for run in members if not run.status.ended]
        if active:
            message = f"has {len(active):,} queued or running runs."
            raise sweeps.SweepActive("sweep", sweep.id, message, "Stop the sweep before you delete it.")
        for run in members:
            runs.check_unused(session=session, run_id=run.id)
        sweep.deleted_at = database.now(session=session)
        marked = sweep.id
    finish(marked)


def finish(sweep_id: str) -> None:
    """Deletes the runs of a marked sweep, each in its own transaction, then the sweep. It can be repeated at any time.

    A run that was resumed meanwhile, or whose result another run loads, stays, and is no longer part of a sweep.
    """
    with database.read_everything() as session:
        run_ids = [run.id for run in sweeps.runs_of(session=session, sweep_ids=[sweep_id])]
    for run_id in run_ids:
        with contextlib.suppress(RunNotFound), database.write() as session:
            try:
                runs.delete(session=session, run_id=run_id)
            except (NotEnded, InUse):
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
