"""The evaluations of a run in its archive: a row each, and the answers as files."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import BaseModel, ConfigDict
from sqlmodel import Session, col, select

from training.config import json_text
from training.scoring.overlap import Overlap
from training.scoring.request import EVALUATIONS_FOLDER, RECORDS_FILE, EvaluationRequest
from worker.store import runs
from worker.store.tables import Evaluation, Status

MEMBER = "evaluations.jsonl"
_FIELDS = (
    "id",
    "status",
    "created_at",
    "started_at",
    "finished_at",
    "attempt",
    "overlap",
    "summary",
    "error",
    "reason",
)


_OF_THIS_MACHINE = {"path": "", "prompt_set": ""}


class _Mean(BaseModel):
    mean: float
    low: float
    high: float
    rows: int


class _Summary(BaseModel):
    """A summary as worker/evaluations/scoring.py writes it, or the results of lm-eval."""

    model_config = ConfigDict(extra="forbid")

    rows: int = 0
    metrics: dict[str, _Mean] = {}
    lm_eval: dict[str, dict[str, Any]] | None = None


def lines(session: Session, run_id: str) -> bytes:
    """The ended evaluations of a run as JSON lines; empty without any."""
    wanted = select(Evaluation).where(Evaluation.run_id == run_id).order_by(col(Evaluation.id))
    ended = (item for item in session.exec(wanted) if item.status.ended)
    return b"".join(json.dumps(_values(item), ensure_ascii=False).encode() + b"\n" for item in ended)


def files(run_dir: Path) -> Iterator[Path]:
    """The answers of all evaluations."""
    return iter(sorted((run_dir / EVALUATIONS_FOLDER).glob(f"*/{RECORDS_FILE}")))


def is_file(name: str) -> bool:
    """True if a file of this name, within the run's folder, has the answers of an evaluation."""
    parts = PurePosixPath(name).parts
    if len(parts) != 3 or PurePosixPath(name).as_posix() != name:
        return False
    folder, evaluation_id, file = parts
    return (folder, file) == (EVALUATIONS_FOLDER, RECORDS_FILE) and evaluation_id.isascii() and evaluation_id.isalnum()


def restore(session: Session, lines: Iterable[bytes], run_id: str, owner: str, folder: Path) -> None:
    """Adds the evaluations to an imported run, whose files are in `folder`. They keep their ids unless these are taken.

    Raises:
        ValueError: a line is not an ended evaluation.
    """
    for line in lines:
        values = json_text.load(line)
        request = EvaluationRequest.model_validate(values["request"] | _OF_THIS_MACHINE).model_dump(mode="json")
        own = {"run_id": run_id, "owner": owner, "request": request}
        item = Evaluation.model_validate({name: values[name] for name in _FIELDS} | own)
        if not Status(item.status).ended or not (item.id.isascii() and item.id.isalnum()):
            raise ValueError("an evaluation has not ended, or has no valid id")
        item.summary = _summary(item.summary)
        item.overlap = (
            item.overlap if item.overlap is None or "problem" in item.overlap else vars(Overlap(**item.overlap))
        )
        known, answers = item.id, folder / EVALUATIONS_FOLDER
        if session.get(Evaluation, item.id):
            item.id = runs.new_id()
            if (answers / known).is_dir():
                (answers / known).rename(answers / item.id)
        session.add(item)
        session.flush()


def _values(item: Evaluation) -> dict[str, Any]:
    """A row without what belongs to this machine; the request without the path of the data."""
    request = item.request | _OF_THIS_MACHINE
    return item.model_dump(mode="json", include=set(_FIELDS)) | {"request": request}


def _summary(value: dict[str, Any] | None) -> dict[str, Any] | None:
    if value is None:
        return None
    return _Summary.model_validate(value).model_dump(exclude_unset=True)
