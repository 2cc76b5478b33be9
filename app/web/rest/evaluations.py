"""REST routes of evaluations: queue, list, read, stop, delete; and of rewards: try some on rows."""

import json
from typing import Annotated, Any, Literal

from fastapi import Body, Query, Response
from fastapi.responses import FileResponse
from pydantic import Field

from app.access import callers
from app.access.permissions import OwnEvaluation, OwnRun
from app.documents.results import evaluated_rows
from app.documents.results import evaluations as documents
from app.documents.results import suites as suite_documents
from app.documents.results.evaluations import EvaluationAnswer, EvaluationList, EvaluationRows, RewardTrial
from app.documents.results.suites import SuiteAnswer, SuiteList
from app.web.rest.routing import BodyForm, JsonRouter, PathText, Reading, ShortText, sends
from app.web.security import error
from training.config.run_config import longest
from training.scoring.request import RECORDS_FILE
from worker.evaluations import reward_trial, submit, suites
from worker.evaluations.reward_trial import MOST_ROWS
from worker.evaluations.suites import Suite
from worker.store import database, evaluations

router = JsonRouter()

Order = Literal["row", "lowest", "highest", "worse", "better"]


RewardText = Annotated[str, Field(max_length=longest("rewards"))]
CodeText = Annotated[str, Field(max_length=longest("reward_code"))]


class Asked(BodyForm):
    """An evaluation: `data` is a data set id or a file on the server. `metrics` are exact_match, f1, rouge1, rouge2, rougeL,
    accuracy (classification), judge, rewards by name or as JSON with options, and FILE.py:FUNCTION with the code in `own`.
    """

    data: PathText = ""
    source: ShortText | None = Field(None, description="result (default), base, or checkpoint-N")
    rows: int | None = Field(None, description="Number of first rows. Default: all.")
    columns: PathText | None = Field(None, description="Column of each role: prompt=question, completion=answer.")
    metrics: list[RewardText] | None = Field(None, max_length=20)
    max_new_tokens: int | None = Field(None, description="Longest answer in tokens. Default: the run's setting.")
    decoding: ShortText | None = Field(
        None, description="greedy (default), or model: as the model's own generation_config.json says."
    )
    own: dict[ShortText, CodeText] | None = Field(
        None, max_length=10, description="Code by file name; each function is a metric if `metrics` names none."
    )
    judge: dict[str, Any] | None = Field(None, description="url and model of a judge, and optionally prompt and scale.")
    exclude_leaked_rows: bool | None = Field(
        None, description="Leave out the rows that training rows contain, entirely or in part. Default: false."
    )
    lm_eval: list[ShortText] | None = Field(
        None, max_length=20, description="Tasks of lm-eval, instead of data and metrics."
    )


class AskedTrial(BodyForm):
    """Rewards to try: a text such as "exact_match, own.py:score*0.5" or a list of names and objects with options, on the rows of
    `data`, a data set id or a file on the server.
    """

    rewards: RewardText | Annotated[list[RewardText | dict[str, Any]], Field(max_length=20)]
    data: PathText
    own: dict[ShortText, CodeText] = Field({}, max_length=10, description="Code by file name.")
    columns: PathText | None = Field(None, description="Column of each role: prompt=question, completion=answer.")
    rows: int = Field(
        20, ge=1, le=MOST_ROWS, description="Number of first rows, which are scored by their expected answers."
    )
    answers: dict[int, Annotated[str, Field(max_length=20_000)]] | None = Field(
        None, description="Answers by number of the row, from 1: only these are scored."
    )


@router.post("/api/rewards")
def score_rows(asked: Annotated[AskedTrial, Body()]) -> RewardTrial:
    """Scores rows by rewards, without a model: by their expected answers, or by given ones. Stores nothing."""
    rewards = asked.rewards if isinstance(asked.rewards, str) else json.dumps(asked.rewards)
    answers = None if asked.answers is None else {number - 1: answer for number, answer in asked.answers.items()}
    return documents.trial(
        reward_trial.try_rewards(
            rewards, asked.own, asked.data, columns=asked.columns, rows=asked.rows, answers=answers,
            allowed=callers.current().allowed,
        )
    )  # fmt: skip


@router.post("/api/runs/{run_id}/evaluations", status_code=201)
def create_evaluation(own: OwnRun, asked: Annotated[Asked, Body()]) -> EvaluationAnswer:
    """Queues an evaluation of a run on a data set."""
    caller, values = callers.current(), asked.model_dump(exclude={"data"})
    return documents.document(submit.submit(own, values, data=asked.data, allowed=caller.allowed, owner=caller.name))


@router.get("/api/runs/{run_id}/evaluations")
def list_evaluations(run_id: str, session: Reading) -> EvaluationList:
    """The evaluations of a run, newest first."""
    return documents.listing(session, run_id)


@router.post("/api/runs/{run_id}/suites", status_code=201)
def create_suite(own: OwnRun, asked: Annotated[Suite, Body()]) -> SuiteAnswer:
    """Queues a suite: evaluations of a trained model and of its base, on a data set and on cases with expectations."""
    caller = callers.current()
    items = suites.start(own, suites.parse(asked.model_dump()), allowed=caller.allowed, owner=caller.name)
    with database.read() as session:
        return next(iter(suite_documents.of_items(session, items).values()))


@router.get("/api/runs/{run_id}/suites")
def list_suites(run_id: str, session: Reading) -> SuiteList:
    """The suites of a run, newest first."""
    return suite_documents.listing(session, run_id)


@router.get("/api/suites/{suite_id}")
def show_suite(suite_id: str, session: Reading) -> SuiteAnswer:
    """The checks of a suite with their causes, and the verdict on each case."""
    return suite_documents.show(session, suite_id)


@router.get("/api/evaluations/{evaluation_id}")
def show_evaluation(evaluation_id: str, session: Reading) -> EvaluationAnswer:
    """One evaluation: progress, overlap with the training rows, means with intervals, and what they show against another one."""
    return documents.show(session, evaluation_id)


@router.get("/api/evaluations/{evaluation_id}/rows")
def show_evaluation_rows(
    session: Reading,
    evaluation_id: str,
    metric: Annotated[
        str, Query(max_length=200, description="Metric of the order and of differences.")
    ] = "exact_match",
    order: Order = "row",
    against: Annotated[str, Query(max_length=32, description="Another evaluation of the same rows.")] = "",
    offset: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=1, le=documents.MOST_ROWS)] = 100,
) -> EvaluationRows:
    """The answers row by row with their scores, sorted; with `against`, also the other answer and the difference of the metric."""
    item = evaluations.get(session=session, evaluation_id=evaluation_id)
    other = evaluations.get(session=session, evaluation_id=against) if against else None
    rows = evaluated_rows.rows(item, other, metric, order)
    return EvaluationRows(rows=rows[offset : offset + limit], total=len(rows))


@router.get("/api/evaluations/{evaluation_id}/answers.jsonl", **sends("application/jsonl", "One JSON object a row."))
def download_evaluation(evaluation_id: str, session: Reading) -> Response:
    """The answers with all scores and the judge's replies, one JSON object a row."""
    item = evaluations.get(session=session, evaluation_id=evaluation_id)
    path = submit.folder_of(item) / RECORDS_FILE
    if not path.is_file():
        return error(
            404, "evaluation", item.id, f"is {item.status.value} and has no answers here.", "Wait for its end."
        )
    return FileResponse(path, media_type="application/jsonl", filename=f"evaluation-{item.id}.jsonl")


@router.post("/api/evaluations/{evaluation_id}/stop")
def stop_evaluation(own: OwnEvaluation) -> EvaluationAnswer:
    """Stops an evaluation; its answers are discarded."""
    with database.write() as session:
        evaluations.request_stop(session=session, evaluation_id=own)
    with database.read() as session:
        return documents.show(session, own)


@router.delete("/api/evaluations/{evaluation_id}", status_code=204)
def delete_evaluation(own: OwnEvaluation) -> None:
    """Deletes an ended evaluation with its answers."""
    submit.remove(own)
