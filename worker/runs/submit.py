"""Checks a configuration completely, then stores and queues the run."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import InitVar, dataclass
from pathlib import Path
from typing import Final

from sqlalchemy.exc import IntegrityError
from sqlmodel import Session

from training.config.fields import ConfigError
from training.config.run_config import RunConfig
from worker.allowed_paths import EVERYTHING, AllowedPaths
from worker.datasets import run_data, template_checking
from worker.datasets.run_data import RunData
from worker.runs import checks, config_files
from worker.runs.requests import notify
from worker.runs.settle import settle
from worker.store import database, quotas, runs, submissions
from worker.store.runs import SweepPlace
from worker.store.submissions import Repeated, Submission
from worker.store.tables import LOCAL, Run

_GATE: Final = object()


@dataclass(frozen=True)
class Prepared:
    """A run that may be stored: its checked configuration, its data and its owner. Only `prepared` makes one."""

    config: RunConfig
    data: RunData
    owner: str
    gate: InitVar[object]

    def __post_init__(self, gate: object) -> None:
        if gate is not _GATE:
            raise TypeError("Only prepared() makes a run that may be stored: it checks the configuration.")


def submit(
    config: RunConfig,
    *,
    parent_id: str | None = None,
    allowed: AllowedPaths = EVERYTHING,
    owner: str = LOCAL,
    submission: Submission | None = None,
) -> Run:
    """Checks, stores and queues a run; if it is refused, nothing is stored. An unreachable broker is no error: the run waits.

    Data files are copied into the store, so that later changes do not affect the run. `allowed` restricts the files of this machine
    that may be named; run and data belong to `owner`. A `submission` that was stored before returns its first run.

    Raises:
        ConfigError: one problem for each wrong setting.
        KeyReused: the submission's key was sent with another body.
    """
    if submission and (first := _first(submission)):
        return first
    try:
        run = _queued(config, parent_id, allowed, owner, submission)
    except (ConfigError, IntegrityError) as error:
        if submission and (first := _first(submission)):  # stored meanwhile, perhaps in the last place of the quota
            return first
        if isinstance(error, ConfigError):
            raise
        # Another request with this data was refused meanwhile, and has deleted it.
        run = _queued(config, parent_id, allowed, owner, submission)
    notify(run.id)
    return run


def _queued(
    config: RunConfig, parent_id: str | None, allowed: AllowedPaths, owner: str, submission: Submission | None
) -> Run:
    with prepared(config, allowed=allowed, owner=owner) as ready:
        try:
            return _create(ready, parent_id, submission)
        except Repeated as repeated:  # caught here, so that the data, which the first run uses too, is kept
            with database.read() as session:
                return runs.get(session=session, run_id=repeated.stored_id)


@contextmanager
def prepared(config: RunConfig, *, allowed: AllowedPaths = EVERYTHING, owner: str = LOCAL) -> Iterator[Prepared]:
    """Checks a run as `submit` does, and copies its data into the store.

    If the `with` block raises, data that is new in the store is deleted again.

    Raises:
        ConfigError: one problem for each wrong setting.
    """
    settled = settle(config, allowed, owner, files=config_files.FIELDS)
    problems = checks.before_import(settled)
    with run_data.imported_data(settled.data, settled.config, owner, problems) as data:
        config = settled.config.model_copy(update={"model": str(settled.folder or settled.config.model)})
        if faults := template_checking.faults(config, data):
            raise ConfigError(faults)
        yield Prepared(config, data, owner, _GATE)


def _first(submission: Submission) -> Run | None:
    with database.read() as session:
        run_id = submissions.find(session=session, submission=submission)
        return runs.get(session=session, run_id=run_id) if run_id else None


def _create(ready: Prepared, parent_id: str | None, submission: Submission | None) -> Run:
    with database.write() as session:
        run = stored(session, ready, parent_id=parent_id)
        if submission:
            submissions.add(session=session, submission=submission, stored_id=run.id)
        refuse_too_many(session, ready.owner)
    return run


def refuse_too_many(session: Session, owner: str) -> None:
    """Refuses what this transaction has queued if the owner then has too many waiting runs.

    Raises:
        ConfigError: there are more than allowed.
    """
    if problem := quotas.waiting_problem(session=session, owner=owner):
        raise ConfigError([problem])


def stored(session: Session, ready: Prepared, *, parent_id: str | None = None, place: SweepPlace | None = None) -> Run:
    """Stores a run as queued; `place` is that in a sweep."""
    config, data = ready.config, ready.data
    return runs.create(
        session=session,
        config=config.model_copy(update=data.settings),
        dataset_id=data.training.id,
        fingerprints=data.fingerprints,
        parent_id=parent_id,
        owner=ready.owner,
        name=config.name or f"{Path(config.model).name} on {data.title}"[:200],
        place=place,
    )
