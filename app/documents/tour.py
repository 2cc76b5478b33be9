"""What is done of the tour, and the runs that its steps link to. Read-only."""

import hashlib
from enum import StrEnum
from functools import cache
from pathlib import Path

from sqlmodel import Session, col, func, select

from app.documents import Document
from training.run_folder.paths import ARCHIVE_FILE
from worker.diagnosis import shared_diagnoses
from worker.settings import ROOT, get_settings
from worker.store import accounts
from worker.store.tables import Dataset, Run, Status


class Step(StrEnum):
    """Steps that leave no trace but their own."""

    DIAGNOSE = "diagnose"
    TAKE_AWAY = "take_away"


class Tour(Document):
    """Which of the five steps are done. `latest` is the newest run, `result` the newest finished one, and `archive` the address of
    its packed result; each can be "".
    """

    started: bool
    own_data: int
    watched: bool
    diagnosed: bool
    taken: bool
    latest: str
    result: str
    archive: str


def document(session: Session) -> Tour:
    """What is done of the tour."""
    steps = accounts.tour_steps(session=session)
    newest_first = select(Run.id).order_by(col(Run.queued_at).desc(), col(Run.id).desc()).limit(1)
    latest = session.exec(newest_first).first() or ""
    result = session.exec(newest_first.where(Run.status == Status.FINISHED)).first() or ""
    trained = session.exec(select(Run.id).where(col(Run.step) > 0).limit(1)).first()
    own = select(func.count()).select_from(Dataset).where(col(Dataset.sha256).not_in(_samples()))
    packed = bool(result) and (get_settings().runs_dir / result / ARCHIVE_FILE).is_file()
    return Tour(
        started=bool(latest),
        own_data=session.exec(own).one(),
        watched=trained is not None,
        diagnosed=Step.DIAGNOSE in steps or bool(shared_diagnoses.listing()),
        taken=Step.TAKE_AWAY in steps,
        latest=latest,
        result=result,
        archive=f"/api/runs/{result}/{ARCHIVE_FILE}" if packed else "",
    )


@cache
def _samples() -> tuple[str, ...]:
    """SHA-256 of the sample data, which are no data of the user's own."""
    files = sorted(Path(ROOT / "static" / "starter").glob("*.jsonl"))
    return tuple(hashlib.sha256(file.read_bytes()).hexdigest() for file in files)
