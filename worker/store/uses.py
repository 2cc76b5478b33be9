"""What runs need: whether each still needs its files, and the runs that use each data set; for all runs at once."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy
from sqlmodel import Session, select

from training.config.data_sets import FIELDS, sources
from training.rewards.rewards import reward_models
from worker.store import json_parts, sight
from worker.store.tables import Run, Status


@dataclass(frozen=True)
class RunState:
    """A run's state. `keeps_best`: a resumed run needs the checkpoint of its best evaluation, not only the newest one, as far as
    is known."""

    id: str
    name: str
    owner: str
    status: Status
    finished_at: float | None
    keeps_best: bool

    @classmethod
    def of(cls, run: Run) -> "RunState":
        """The state of a loaded run."""
        return cls(run.id, run.name, run.owner, run.status, run.finished_at, _keeps_best(run.config))

    @property
    def resumable(self) -> bool:
        """True if Resume would continue the run from its checkpoint."""
        return self.status.resumable


def run_states(*, session: Session) -> dict[str, RunState]:
    """The state of every run, by its id."""
    run: Any = Run
    best = json_parts.flag(Run.config, "load_best_at_end")
    asked = sqlalchemy.select(run.id, run.name, run.owner, run.status, run.finished_at, best)
    rows = session.connection().execute(asked)
    return {row[0]: RunState(*row[:5], keeps_best=row[5] is not False) for row in rows}


def _keeps_best(config: Mapping[str, Any]) -> bool:
    return config.get("load_best_at_end") is not False


@dataclass(frozen=True)
class DatasetUse:
    """A run that trains or evaluates on a data set."""

    id: str
    name: str
    status: Status

    @property
    def needs_it(self) -> bool:
        """True if this run keeps the data set from being deleted."""
        return not self.status.ended


def runs_that_load(*, session: Session, run_id: str) -> int:
    """The number of queued and running runs that load the result of a run: as teacher, reward model or initial adapter."""
    run: Any = Run
    named = (json_parts.text(run.config, field) for field in ("teacher", "init_adapter", "rewards"))
    active = run.status.in_([status for status in Status if not status.ended])
    rows = session.connection().execute(sqlalchemy.select(*named).where(active))
    return sum(
        run_id in (teacher, adapter, *(model.run for model in reward_models(rewards or "")))
        for teacher, adapter, rewards in rows
    )


def dataset_users(*, session: Session) -> dict[str, list[DatasetUse]]:
    """The runs that use each data set, by its id, the newest first; unused data sets are missing.

    Of runs that the session's user does not see, only that they use it.
    """
    run: Any = Run
    asked = sqlalchemy.select(
        run.id, run.name, run.status, run.dataset_id, *(json_parts.text(run.config, field) for field in FIELDS)
    ).order_by(run.created_at.desc(), run.id)
    seen = set(session.exec(select(Run.id))) if sight.user() else None
    found: defaultdict[str, list[DatasetUse]] = defaultdict(list)
    for number, (run_id, name, status, first, *named) in enumerate(session.connection().execute(asked)):
        use = DatasetUse(run_id, name, status)
        if seen is not None and run_id not in seen:
            use = DatasetUse(f"{sight.HIDDEN}{number}", sight.ANOTHER_RUN, status)
        ids = {source.path for value in named for source in sources(value)}
        for dataset_id in ids | ({first} if first else set()):
            found[dataset_id].append(use)
    return dict(found)
