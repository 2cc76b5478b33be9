"""Evaluations of runs, and their rows."""

from typing import Any

from app.documents.results.evaluations import Row
from app.web.rest.answers.form import Answer, columns
from worker.store.tables import Evaluation

_COLUMNS = (
    "id", "run_id", "owner", "status", "created_at", "started_at", "finished_at", "attempt", "device", "stopping", "phase", "done",
    "total", "overlap", "summary", "error", "reason",
)  # fmt: skip


class Against(Answer):
    """Another evaluation of the same rows, and by metric what the scores show: difference, interval, verdict."""

    evaluation: str
    source: str
    scores: dict[str, dict[str, Any]]


@columns(Evaluation, _COLUMNS)
class EvaluationAnswer(Answer):
    """An evaluation: what was asked for, its progress, and its means. Times are seconds since the epoch."""

    source: str
    data: str
    sha256: str
    columns: str | None
    asked_rows: int | None
    metrics: list[str]
    lm_eval: list[str]
    judge: dict[str, Any] | None
    against: Against | None


class EvaluationList(Answer):
    """The evaluations of a run, newest first."""

    evaluations: list[EvaluationAnswer]


class EvaluationRows(Answer):
    """Answers row by row with their scores, and how many there are."""

    rows: list[Row]
    total: int
