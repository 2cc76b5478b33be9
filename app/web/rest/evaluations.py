"""REST routes of evaluations: queue, list, read, stop, delete."""

from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import Body, Query, Response
from fastapi.responses import FileResponse
from pydantic import Field

from app.access import changes
from app.documents.results import evaluations as document
from app.documents.results.evaluations import FIELDS, Row
from app.web.rest.routing import Answer, BodyForm, JsonRouter, answers, columns, sends
from app.web.security import error
from training.scoring.request import RECORDS_FILE
from worker.evaluations.submit import folder_of
from worker.store import database, evaluations
from worker.store.tables import Evaluation


class Against(Answer):
    """Another evaluation of the same rows, and by metric what the scores show: difference, interval, verdict."""

    evaluation: str
    source: str
    scores: dict[str, dict[str, Any]]


@columns(Evaluation, FIELDS)
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


router = JsonRouter()

Order = Literal["row", "lowest", "highest", "worse", "better"]


class Asked(BodyForm):
    """An evaluation: `data` is a data set id or a file on the server. `metrics` are exact_match, f1, rouge1, rouge2, rougeL,
    accuracy (classification), judge, and FILE.py:FUNCTION with the code in `own`.
    """

    data: str = ""
    source: str | None = Field(None, description="result (default), base, or checkpoint-N")
    rows: int | None = Field(None, description="Number of first rows. Default: all.")
    columns: str | None = Field(None, description="Column of each role: prompt=question, completion=answer.")
    metrics: list[str] | None = None
    max_new_tokens: int | None = Field(None, description="Longest answer in tokens. Default: the run's setting.")
    own: dict[str, str] | None = Field(
        None, description="Code by file name; each function is a metric if `metrics` names none."
    )
    judge: dict[str, Any] | None = Field(None, description="url and model of a judge, and optionally prompt and scale.")
    lm_eval: list[str] | None = Field(None, description="Tasks of lm-eval, instead of data and metrics.")


@router.post("/api/runs/{run_id}/evaluations", status_code=201, **answers(EvaluationAnswer, 201))
def create_evaluation(run_id: str, asked: Annotated[Asked, Body()]) -> dict[str, Any]:
    """Queues an evaluation of a run on a data set.

    Raises:
        ConfigError: a value is invalid; answered with 422 and all problems.
    """
    values = asked.model_dump(exclude={"data"})
    return document.document(changes.evaluate(run_id, asked.data, values))


@router.get("/api/runs/{run_id}/evaluations", **answers(EvaluationList))
def list_evaluations(run_id: str) -> dict[str, Any]:
    """The evaluations of a run, newest first."""
    with database.read() as session:
        return {"evaluations": document.listing(session, run_id)}


@router.get("/api/evaluations/{evaluation_id}", **answers(EvaluationAnswer))
def show_evaluation(evaluation_id: str) -> dict[str, Any]:
    """One evaluation: progress, overlap with the training rows, means with intervals, and what they show against another one."""
    with database.read() as session:
        return document.show(session, evaluation_id)


@router.get("/api/evaluations/{evaluation_id}/rows", **answers(EvaluationRows))
def show_evaluation_rows(
    evaluation_id: str,
    metric: Annotated[
        str, Query(max_length=200, description="Metric of the order and of differences.")
    ] = "exact_match",
    order: Order = "row",
    against: Annotated[str, Query(max_length=32, description="Another evaluation of the same rows.")] = "",
    offset: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=1, le=document.MOST_ROWS)] = 100,
) -> dict[str, Any]:
    """The answers row by row with their scores, sorted; with `against`, also the other answer and the difference of the metric."""
    with database.read() as session:
        item = evaluations.get(session=session, evaluation_id=evaluation_id)
        other = evaluations.get(session=session, evaluation_id=against) if against else None
    listed = document.ordered(document.rows(item, other, metric), order, metric)
    return {"rows": [asdict(row) for row in listed[offset : offset + limit]], "total": len(listed)}


@router.get("/api/evaluations/{evaluation_id}/answers.jsonl", **sends("application/jsonl", "One JSON object a row."))
def download_evaluation(evaluation_id: str) -> Response:
    """The answers with all scores and the judge's replies, one JSON object a row."""
    with database.read() as session:
        item = evaluations.get(session=session, evaluation_id=evaluation_id)
    path = folder_of(item) / RECORDS_FILE
    if not path.is_file():
        return error(
            404, "evaluation", item.id, f"is {item.status.value} and has no answers here.", "Wait for its end."
        )
    return FileResponse(path, media_type="application/jsonl", filename=f"evaluation-{item.id}.jsonl")


@router.post("/api/evaluations/{evaluation_id}/stop", **answers(EvaluationAnswer))
def stop_evaluation(evaluation_id: str) -> dict[str, Any]:
    """Stops an evaluation; its answers are discarded."""
    changes.stop_evaluation(evaluation_id)
    return show_evaluation(evaluation_id)


@router.delete("/api/evaluations/{evaluation_id}", status_code=204)
def delete_evaluation(evaluation_id: str) -> None:
    """Deletes an ended evaluation with its answers."""
    changes.delete_evaluation(evaluation_id)
