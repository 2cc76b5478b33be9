"""Suites: the evaluations that show together what training has gained, and what it has cost.

On a data set the trained model answers, the model before training, and that with rows of the training data in its prompts
(few-shot). The first two also answer rows that were trained on, and both answer cases with expectations.
"""

import json
import secrets
from hashlib import sha256
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from training.config.fields import ConfigError
from training.errors import Problem, UserError
from training.rewards.built_in import JUDGE, MODEL
from training.rewards.rewards import check_options, reward_of
from training.scoring.request import BASE, BASELINE, MOST_SHOTS, RESULT
from worker.allowed_paths import EVERYTHING, AllowedPaths
from worker.datasets import datasets
from worker.evaluations.submit import submit
from worker.store import database, quotas
from worker.store.tables import LOCAL, Evaluation

MOST_CASES = 500
MOST_TRAINING_ROWS = 500
CASES_NAME = "cases"
_FORM = 'Write {"user": "...", "expect": "baseline"}, or {"user": "...", "expect": "contains", "expected": "..."}.'
_Number = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Case(BaseModel):
    """A prompt with an expectation: that the answer is that of the model before training (`baseline`), or that a reward, by name or
    as an object with options, gives it at least `threshold`. `mode` is chat or text."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    user: str = Field(min_length=1, max_length=20_000)
    system: str = Field("", max_length=20_000)
    mode: str = Field("chat", pattern="^(chat|text)$", max_length=4)
    expect: Annotated[str, Field(max_length=200)] | dict[str, Any] = Field(
        BASELINE, description="baseline, the name of a reward, or a reward with options"
    )
    expected: str = Field("", max_length=20_000, description="the text that the reward compares with")
    threshold: float = Field(1.0, allow_inf_nan=False, description="lowest score that meets the expectation")


class Suite(BaseModel):
    """What a suite asks: `cases`, held-out rows of a data set, or both."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cases: list[Case] = Field([], max_length=MOST_CASES)
    data: str = Field("", max_length=4096, description="data set id or file on the server")
    columns: str | None = Field(
        None, max_length=4096, description="Column of each role: prompt=question, completion=answer."
    )
    source: str = Field(RESULT, max_length=200, description="result (default) or checkpoint-N")
    rows: int | None = Field(None, ge=1, description="Number of first rows. Default: all.")
    exclude_leaked_rows: bool = Field(
        False, description="Leave out the held-out rows that training rows contain, entirely or in part."
    )
    shots: int = Field(
        0, ge=0, le=MOST_SHOTS, description="Training rows in the prompts of the few-shot baseline. 0: none."
    )
    metrics: list[Annotated[str, Field(max_length=20_000)]] = Field(
        [],
        max_length=20,
        description="The first one decides whether the model has gained. Default: exact_match, f1, rougeL.",
    )
    max_new_tokens: int | None = Field(None, ge=1, le=32_768)
    text: str = Field(
        "", max_length=100_000, description="Plain text whose loss is measured. Default: Lathe's own, in English."
    )
    most_kl: _Number = Field(1.0, description="Highest KL divergence from the model before training, nats per token.")
    most_loss: _Number = Field(0.5, description="Highest growth of the loss on the plain text, nats per token.")
    most_gap: _Number = Field(
        0.1,
        description="How much more the first metric may gain on training rows than on held-out rows (generalization gap).",
    )


def parse(values: dict[str, Any]) -> Suite:
    """The suite that a request describes. Raises ConfigError with a problem for each wrong value."""
    try:
        found = Suite.model_validate(values)
    except ValidationError as error:
        raise ConfigError([_problem(dict(one)) for one in error.errors()]) from None
    problems = [problem for place, case in enumerate(found.cases, 1) for problem in _case_problems(place, case)]
    if not found.cases and not found.data:
        problems.append(Problem("cases", None, "are missing, and so is data.", "Give cases, a data set, or both."))
    if found.source == BASE:
        problems.append(Problem("source", BASE, "is what a suite compares with.", "Give result or checkpoint-N."))
    if problems:
        raise ConfigError(problems)
    return found


def start(run_id: str, suite: Suite, *, allowed: AllowedPaths = EVERYTHING, owner: str = LOCAL) -> list[Evaluation]:
    """Queues the evaluations of a suite: that of the trained model first, so that what is refused is refused before any is queued.

    Raises:
        RunNotFound, ConfigError: as `submit`.
    """
    shared = {"suite": secrets.token_hex(6), "max_new_tokens": suite.max_new_tokens}
    on_training = (suite.source, BASE) if suite.data else ()
    asked: list[tuple[dict[str, Any], str]] = []
    if suite.data:
        rows = shared | {"columns": suite.columns, "rows": suite.rows, "metrics": suite.metrics or None}
        rows |= {"exclude_leaked_rows": suite.exclude_leaked_rows}
        asked += [(rows | {"source": suite.source}, suite.data), (rows | {"source": BASE}, suite.data)]
        asked += [(rows | {"source": BASE, "shots": suite.shots}, suite.data)] if suite.shots else []
    if suite.cases:
        asked.append((shared | _cases(suite), ""))
    with database.read_everything() as session:
        quotas.refuse_too_many(session=session, owner=owner, more=len(asked) + len(on_training))
    queued = [submit(run_id, values, data=data, allowed=allowed, owner=owner) for values, data in asked]
    for source in on_training:
        values = shared | {"source": source} | _of_training(suite, queued[0])
        queued.append(submit(run_id, values, allowed=allowed, owner=owner))
    return queued


def _of_training(suite: Suite, held_out: Evaluation) -> dict[str, Any]:
    """The evaluation of rows that were trained on, as many as there are held-out rows."""
    stored = datasets.with_content(held_out.asked.sha256)
    rows = min(MOST_TRAINING_ROWS, *(count for count in (suite.rows, stored and stored.rows) if count))
    return {"of_training": True, "rows": rows, "metrics": suite.metrics or None, "most_gap": suite.most_gap}


def _cases(suite: Suite) -> dict[str, Any]:
    """The evaluation that answers the cases: each different reward is a metric."""
    metrics: dict[str, str] = {}
    prompts = []
    for case in suite.cases:
        entry = _entry(case)
        if entry:
            metrics[entry["name"]] = json.dumps(
                entry if entry["name"] != entry["reward"] else {"reward": entry["reward"]}
            )
        prompts.append(case.model_dump() | {"expect": entry["name"] if entry else BASELINE})
    digest = sha256(json.dumps(prompts, sort_keys=True).encode()).hexdigest()
    limits = {name: getattr(suite, name) for name in ("text", "most_kl", "most_loss", "source")}
    return limits | {"name": CASES_NAME, "sha256": digest, "prompts": prompts, "metrics": list(metrics.values())}


def _entry(case: Case) -> dict[str, Any] | None:
    """The reward of a case with a name that is the same for the same options; None for BASELINE."""
    if case.expect == BASELINE:
        return None
    entry = {"reward": case.expect} if isinstance(case.expect, str) else dict(case.expect)
    entry.pop("weight", None)
    kind, options = entry["reward"], {key: value for key, value in entry.items() if key not in ("reward", "name")}
    text = json.dumps(options, ensure_ascii=False, sort_keys=True)
    short = text if len(text) <= 40 else f"{text[:30]} {sha256(text.encode()).hexdigest()[:8]}"
    return options | {"reward": kind, "name": f"{kind} {short}" if options else kind}


def _case_problems(place: int, case: Case) -> list[Problem]:
    field = f"cases.{place}"
    if case.expect == BASELINE:
        return []
    try:
        reward = reward_of(case.expect)
        check_options(reward)
    except UserError as error:
        return [Problem(f"{field}.expect", error.problem.value, error.problem.message, error.fix)]
    if reward.own or reward.kind in (JUDGE, MODEL):
        fix = "Use a built-in reward; score rows of a data set with this one."
        return [Problem(f"{field}.expect", reward.kind, "cannot be the expectation of a case.", fix)]
    if reward.compares and not case.expected.strip():
        fix = 'Add "expected": the text that it compares with.'
        return [Problem(f"{field}.expected", None, f"is missing, which {reward.kind} compares with.", fix)]
    return []


def _problem(error: dict[str, Any]) -> Problem:
    place = ".".join(str(part + 1) if isinstance(part, int) else str(part) for part in error["loc"])
    message = str(error["msg"]).removeprefix("Value error, ")
    return Problem(
        place or "cases", str(error.get("input"))[:200], f"{message}.", _FORM if "cases" in place else "Correct it."
    )
