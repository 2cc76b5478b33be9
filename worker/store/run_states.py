"""What decides whether a run still needs its files, for all runs at once."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import sqlalchemy
from sqlmodel import Session, col

from worker.store.tables import Run, Status


@dataclass(frozen=True)
class RunState:
    """A run's state. `keeps_best`: a resumed run needs the checkpoint of its best evaluation, not only the newest one."""

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


def states(*, session: Session) -> dict[str, RunState]:
    """The state of every run, by its id."""
    run: Any = Run
    best = cast(Any, col(Run.config))["load_best_at_end"].as_boolean()
    asked = sqlalchemy.select(run.id, run.name, run.owner, run.status, run.finished_at, best)
    rows = session.connection().execute(asked)
    return {row[0]: RunState(*row[:5], keeps_best=bool(row[5])) for row in rows}


def _keeps_best(config: Mapping[str, Any]) -> bool:
    return bool(config.get("load_best_at_end"))
