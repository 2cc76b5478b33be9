"""The runs that use each data set."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any, cast

import sqlalchemy
from sqlmodel import Session, col

from training.config.data_sets import FIELDS, sources
from worker.store.tables import Run, Status


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


def users(*, session: Session) -> dict[str, list[DatasetUse]]:
    """The runs that use each data set, by its id, the newest first; unused data sets are missing."""
    config = cast(Any, col(Run.config))
    run: Any = Run
    asked = sqlalchemy.select(
        run.id, run.name, run.status, run.dataset_id, *(config[field].as_string() for field in FIELDS)
    ).order_by(run.created_at.desc(), run.id)
    found: defaultdict[str, list[DatasetUse]] = defaultdict(list)
    for run_id, name, status, first, *named in session.connection().execute(asked):
        ids = {source.path for value in named for source in sources(value)}
        for dataset_id in ids | ({first} if first else set()):
            found[dataset_id].append(DatasetUse(run_id, name, status))
    return dict(found)
