"""The runs that use each data set."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any, cast

import sqlalchemy
from sqlmodel import Session, col, select

from training.config.data_sets import FIELDS, sources
from worker.store import sight
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
    """The runs that use each data set, by its id, the newest first; unused data sets are missing.

    Of runs that the session's user does not see, only that they use it.
    """
    config = cast(Any, col(Run.config))
    run: Any = Run
    asked = sqlalchemy.select(
        run.id, run.name, run.status, run.dataset_id, *(config[field].as_string() for field in FIELDS)
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
