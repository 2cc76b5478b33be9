"""Which steps of the tour are done on this installation, from its database."""

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from sqlmodel import Session, col, func, select

from worker.runs import shared_diagnoses
from worker.settings import ROOT
from worker.store.notifications import preferences
from worker.store.tables import Dataset, Run, Status

DIAGNOSE, TAKE_AWAY = "diagnose", "take_away"
"""Steps that leave no trace but their own."""


@dataclass(frozen=True)
class Tour:
    """What is done, and the runs that the steps link to: `latest` is the newest run, `result` the newest finished one."""

    started: bool
    own_data: int
    watched: bool
    diagnosed: bool
    taken: bool
    latest: str
    result: str

    @property
    def done(self) -> int:
        """The number of steps that are done, of five."""
        return sum((self.started, self.own_data > 0, self.watched, self.diagnosed, self.taken))


def tour(session: Session) -> Tour:
    """The state of the five steps."""
    steps = preferences.tour_steps(session=session)
    newest_first = select(Run.id).order_by(col(Run.queued_at).desc(), col(Run.id).desc()).limit(1)
    latest = session.exec(newest_first).first() or ""
    result = session.exec(newest_first.where(Run.status == Status.FINISHED)).first() or ""
    trained = session.exec(select(Run.id).where(col(Run.step) > 0).limit(1)).first()
    own = select(func.count()).select_from(Dataset).where(col(Dataset.sha256).not_in(_samples()))
    return Tour(
        started=bool(latest),
        own_data=session.exec(own).one(),
        watched=trained is not None,
        diagnosed=DIAGNOSE in steps or bool(shared_diagnoses.listing()),
        taken=TAKE_AWAY in steps,
        latest=latest,
        result=result,
    )


@cache
def _samples() -> tuple[str, ...]:
    """SHA-256 of the sample data, which are no data of the user's own."""
    files = sorted(Path(ROOT / "static" / "starter").glob("*.jsonl"))
    return tuple(hashlib.sha256(file.read_bytes()).hexdigest() for file in files)
