"""Starts and stops a sweep. All runs are stored in one transaction: a sweep is queued whole, or not at all."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from training.config.fields import ConfigError
from worker import disk_quota
from worker.allowed_paths import EVERYTHING, AllowedPaths
from worker.runs import submit
from worker.runs.requests import notify
from worker.runs.submit import Prepared
from worker.store import database, runs, submissions, sweeps
from worker.store.runs import SweepPlace
from worker.store.submissions import Repeated, Submission
from worker.store.tables import LOCAL, Sweep
from worker.sweeps.plan import Plan, as_document, make_plan, refuse_empty
from worker.sweeps.spec import SweepSpec

_DATA = ("data", "validation_data", "columns")


def start(
    spec: SweepSpec, *, allowed: AllowedPaths = EVERYTHING, owner: str = LOCAL, submission: Submission | None = None
) -> Sweep:
    """Plans a sweep, and queues those of its runs that can start and fit. A `submission` that was stored before returns its sweep.

    Raises:
        ConfigError: no run can start, or one is refused now; nothing is queued.
        KeyReused: the submission's key was sent with another body.
    """
    if submission and (earlier := _first(submission)):
        return earlier
    try:
        return _started(spec, allowed, owner, submission)
    except ConfigError:
        if submission and (earlier := _first(submission)):  # stored meanwhile, perhaps in the last places of the quota
            return earlier
        raise


def _started(spec: SweepSpec, allowed: AllowedPaths, owner: str, submission: Submission | None) -> Sweep:
    plan = make_plan(spec, allowed, owner)
    refuse_empty(plan)
    with ExitStack() as stack, disk_quota.measured_once():
        ready = list(_prepared(stack, plan, allowed, owner))
        try:
            sweep, first = _store(plan, ready, owner, submission)
        except Repeated as repeated:  # caught here, so that the data, which the first sweep uses too, is kept
            with database.read() as session:
                return sweeps.get(session=session, sweep_id=repeated.stored_id)
    notify(first)
    return sweep


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


def _first(submission: Submission) -> Sweep | None:
    with database.read() as session:
        sweep_id = submissions.find(session=session, submission=submission)
        return sweeps.get(session=session, sweep_id=sweep_id) if sweep_id else None


def _store(
    plan: Plan, ready: list[tuple[int, Prepared]], owner: str, submission: Submission | None
) -> tuple[Sweep, str]:
    """Stores the sweep with its runs; returns it and the id of the first run."""
    spec = plan.spec
    pause_at = spec.min_steps if spec.halves else None
    with database.write() as session:
        values = spec.model_dump(mode="json")
        sweep = sweeps.create(session=session, name=spec.title, owner=owner, spec=values, plan=as_document(plan))
        if submission:
            submissions.add(session=session, submission=submission, stored_id=sweep.id)
        created = [submit.stored(session, run, place=SweepPlace(sweep.id, trial, pause_at)) for trial, run in ready]
        submit.refuse_too_many(session, owner)
    return sweep, created[0].id
