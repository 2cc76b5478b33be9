"""OpenAI's API to try and check a grader."""

import json
import tempfile
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Body
from pydantic import Field

from app.web.rest.openai_jobs import check_code
from app.web.rest.routing import BodyForm, JsonRouter
from training.errors import UserError
from training.rewards.reward_process import RewardProcess
from training.rewards.rewards import CODE_FILE, functions_in, parse_rewards, total
from training.rewards.sample import Sample
from worker.fine_tuning.graders import rewards_of
from worker.machine.turns import turns

Json = dict[str, Any]
router: APIRouter = JsonRouter(include_in_schema=False)


class NewGrader(BodyForm):
    """A grader."""

    grader: Annotated[Json, Field(max_length=20)]


class GraderTrial(NewGrader):
    """A grader, with an answer to score and the columns of its row."""

    model_sample: str = Field(max_length=200_000)
    item: Json = Field({}, max_length=1000)
    reference_answer: Any = None


@router.post("/v1/fine_tuning/alpha/graders/validate")
def validate_grader(body: NewGrader) -> Json:
    """Checks a grader."""
    _parsed(body.grader)
    return {"grader": body.grader}


@router.post("/v1/fine_tuning/alpha/graders/run")
def run_grader(body: Annotated[GraderTrial, Body()]) -> Json:
    """The score of an answer."""
    rewards, own = _parsed(body.grader)
    item = body.item if body.reference_answer is None else {"reference_answer": body.reference_answer} | body.item
    with turns.taken(), tempfile.TemporaryDirectory() as folder, RewardProcess(rewards, own, Path(folder)) as process:
        scores = process.score([Sample("", body.model_sample, "", item)])
    values = {name: part[0] for name, part in scores.values.items()}
    errors = {name: trouble.sentence for name, trouble in scores.troubles.items()}
    failed = bool(errors) or None in values.values()
    return {
        "reward": total(rewards, scores.values)[0],
        "sub_rewards": values,
        "model_grader_token_usage_per_model": {},
        "metadata": {
            "name": body.grader.get("name", ""),
            "type": body.grader["type"],
            "errors": {"other_error": failed, "sample_parse_error": False, "details": errors},
            "execution_time": scores.seconds,
            "scores": values,
        },
    }


def _parsed(grader: Json) -> Any:
    """The rewards of a grader, and the files of their code. Raises UserError if it is wrong, or has code that is not allowed."""
    check_code(grader)
    entries, code = rewards_of(grader, "grader")
    try:
        functions = functions_in("grader", CODE_FILE, code) if code else []
        return parse_rewards(json.dumps(entries), functions), {CODE_FILE: code} if code else {}
    except UserError as wrong:
        problem = wrong.problem
        raise UserError("grader", problem.value, problem.message, problem.fix) from None
