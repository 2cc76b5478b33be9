"""Which runs use which data sets."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any, cast

import sqlalchemy
from sqlmodel import Session, col

from worker.models import Run, Status


@dataclass(frozen=True)
class User:
    """A run that trains or evaluates on a data set."""

    id: str
    name: str
    status: Status

    @property
    def needs_it(self) -> bool:
        """Whether the data set cannot be removed because of this run."""
        return not self.status.ended


def users(*, session: Session) -> dict[str, list[User]]:
    """The runs that use each data set, by its id, the newest first; none that no run uses."""
    held_out = cast(Any, col(Run.config))["validation_data"].as_string()
    run: Any = Run
    asked = sqlalchemy.select(run.id, run.name, run.status, run.dataset_id, held_out).order_by(
        run.created_at.desc(), run.id
    )
    found: defaultdict[str, list[User]] = defaultdict(list)
    for run_id, name, status, *data in session.connection().execute(asked):
        for dataset_id in {value for value in data if value}:
            found[dataset_id].append(User(run_id, name, status))
    return dict(found)
