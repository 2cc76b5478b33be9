"""Checks a configuration completely, then stores and queues the run."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import InitVar, dataclass
from pathlib import Path
from typing import Any, Final

from sqlalchemy.exc import IntegrityError
from sqlmodel import Session

from training.config.fields import ConfigError
from training.config.run_config import RunConfig
from worker import celery_app
from worker.allowed_paths import EVERYTHING, AllowedPaths
from worker.datasets import run_data
from worker.datasets.run_data import RunData
from worker.runs import checks, rows_check
from worker.runs.settle import FILES, settle
from worker.store import database, quotas, runs, submissions
from worker.store.runs import SweepTrial
from worker.store.submissions import Submission
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
    fine_tuning: dict[str, Any] | None = None,
) -> Run:
    """Checks, stores and queues a run; if it is refused, nothing is stored. An unreachable broker is no error: the run waits.

    Data files are copied into the store, so that later changes do not affect the run. `allowed` restricts the files of this machine
    that may be named; run and data belong to `owner`. A `submission` that was stored before returns its first run. `fine_tuning` is
    the request of OpenAI's API.

    Raises:
        ConfigError: one problem for each wrong setting.
        KeyReused: the submission's key was sent with another body.
    """

    def queue() -> str:
        with prepared(config, allowed=allowed, owner=owner) as ready:
            run_id = _create(ready, parent_id, submission, fine_tuning).id
        celery_app.notify(run_id)
        return run_id

    def queue_again() -> str:
        try:
            return queue()
        except IntegrityError:  # another request with this data was refused meanwhile, and has deleted it
            return queue()

    run_id = submissions.once(submission, queue_again)
    with database.read() as session:
        return runs.get(session=session, run_id=run_id)


@contextmanager
def prepared(config: RunConfig, *, allowed: AllowedPaths = EVERYTHING, owner: str = LOCAL) -> Iterator[Prepared]:
    """Checks a run as `submit` does, and copies its data into the store.

    If the `with` block raises, data that is new in the store is deleted again.

    Raises:
        ConfigError: one problem for each wrong setting.
    """
    settled = settle(config, allowed, owner, files=FILES)
    problems = checks.before_import(settled)
    with run_data.imported_data(settled.data, settled.config, settled.quota, problems) as data:
        config = settled.config.model_copy(update={"model": str(settled.folder or settled.config.model)})
        if faults := rows_check.faults(config, data):
            raise ConfigError(faults)
        yield Prepared(config, data, owner, _GATE)


def _create(
    ready: Prepared, parent_id: str | None, submission: Submission | None, fine_tuning: dict[str, Any] | None
) -> Run:
    with database.write() as session:
        run = stored(session, ready, parent_id=parent_id)
        run.fine_tuning = fine_tuning
        if submission:
            submissions.add(session=session, submission=submission, stored_id=run.id)
        quotas.refuse_too_many(session=session, owner=ready.owner)
    return run


def stored(session: Session, ready: Prepared, *, parent_id: str | None = None, trial: SweepTrial | None = None) -> Run:
    """Stores a run as queued; `trial` is that of a sweep."""
    config, data = ready.config, ready.data
    return runs.create(
        session=session,
        config=config.model_copy(update=data.settings),
        dataset_id=data.training.id,
        fingerprints=data.fingerprints,
        parent_id=parent_id,
        owner=ready.owner,
        name=config.name or f"{Path(config.model).name} on {data.title}"[:200],
        trial=trial,
    )
