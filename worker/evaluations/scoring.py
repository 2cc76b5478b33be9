"""Scores of an evaluation's answers by rewards and by a judge, and the means of all."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from training.errors import UserError
from training.files import write_whole
from training.rewards.built_in import JUDGE
from training.rewards.judge import JudgeError, judged
from training.rewards.reward_batch import Trouble, together
from training.rewards.reward_process import RewardProcess
from training.rewards.sample import Sample
from training.scoring.intervals import mean_interval
from training.scoring.request import COLUMNS, PLAIN, RECORDS_FILE, EvaluationRequest
from worker.allowed_rewards import judge_key

_BATCH = 256
_ROWS_FIX = "Give rows to which it applies, or leave it out."

Record = dict[str, Any]
Progress = Callable[[str, int, int], None]


class MetricFailed(UserError):  # noqa: N818
    """A metric has no score for any row."""


def read_records(folder: Path) -> list[Record]:
    """The answers of an evaluation, a record for each row."""
    with (folder / RECORDS_FILE).open(encoding="utf-8") as stream:
        return [json.loads(line) for line in stream]


def add_scores(
    folder: Path, request: EvaluationRequest, progress: Progress, stopped: Callable[[], bool]
) -> dict[str, Trouble]:
    """Adds the scores of rewards and of the judge to answers.jsonl, and returns what went wrong with each reward.

    Raises:
        MetricFailed: a reward has no score for any row; names the first row and line.
        JudgeError: the judge answered for no row, or no reply had a score.
    """
    if not request.is_scored_later:
        return {}
    records = read_records(folder)
    troubles = compute(folder, request, records, progress, stopped) if request.rewards else {}
    if not stopped():
        _check(request, records, troubles)
    if JUDGE in request.metrics:
        troubles = together(troubles, _judge(request, records, progress, stopped))
    for record in records:
        record.pop(PLAIN, None)
    lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    write_whole(folder / RECORDS_FILE, "".join(lines))
    return troubles


def summarize(records: Sequence[Record], metrics: Sequence[str], unbounded: Collection[str] = ()) -> dict[str, Any]:
    """The number of rows, and of each metric its mean with the 95% interval and the rows that have a score. The scores of
    `unbounded` metrics are no shares, also if all lie from 0 to 1."""
    found: dict[str, Any] = {}
    for metric in metrics:
        scores = [record["scores"][metric] for record in records if record["scores"].get(metric) is not None]
        if scores:
            low, high = mean_interval(scores, unbounded=metric in unbounded)
            found[metric] = {"mean": fmean(scores), "low": low, "high": high, "rows": len(scores)}
            found[metric] |= {"unbounded": True} if metric in unbounded else {}
    return {"rows": len(records), "metrics": found}


def compute(
    folder: Path, request: EvaluationRequest, records: Sequence[Record], progress: Progress, stopped: Callable[[], bool]
) -> dict[str, Trouble]:
    """Adds the scores of the rewards among the metrics, and returns what went wrong with each."""
    troubles: dict[str, Trouble] = {}
    samples = [
        Sample(_plain(record), record["answer"], record["expected"], record.pop(COLUMNS, {}), record["row"])
        for record in records
    ]
    with RewardProcess(request.rewards, request.own, folder, judge_key=judge_key) as process:
        for start in range(0, len(records), _BATCH):
            if stopped():
                return troubles
            progress("scoring", start, len(records))
            scores = process.score(samples[start : start + _BATCH])
            for name, values in scores.values.items():
                for record, value in zip(records[start:], values, strict=False):
                    record["scores"][name] = value
            troubles = together(troubles, scores.troubles)
    return troubles


def _plain(record: Record) -> str:
    """The prompt of a record as rewards and judges see it: without a chat template."""
    return str(record.get(PLAIN, record["prompt"]))


def _check(request: EvaluationRequest, records: Sequence[Record], troubles: Mapping[str, Trouble]) -> None:
    """Raises MetricFailed: a metric has no score for any row."""
    for name, trouble in troubles.items():
        if all(record["scores"].get(name) is None for record in records):
            own = any(reward.own for reward in request.rewards if reward.name == name)
            fix = (
                "Correct the function; it takes prompt, answer and expected and returns a number." if own else _ROWS_FIX
            )
            raise MetricFailed("metrics", name, f"{trouble.sentence}.", fix)


def _judge(
    request: EvaluationRequest, records: Sequence[Record], progress: Progress, stopped: Callable[[], bool]
) -> dict[str, Trouble]:
    """Adds the judge's scores and replies, and returns how many rows have no reply, with the first reason."""
    judge = request.judge
    assert judge is not None
    progress("judging", 0, len(records))
    seen = [record | {"prompt": _plain(record)} for record in records]
    judgements = judged(
        judge, seen, lambda done, total: progress("judging", done, total), stopped, judge_key(judge.url)
    )
    for record in records:
        record["scores"][JUDGE], record["judge"] = None, ""
    errors: list[str] = []
    try:
        for record, judgement in zip(records, judgements, strict=False):
            record["scores"][JUDGE], record["judge"] = judgement.score, judgement.reply
            errors += [judgement.error] if judgement.error else []
    except JudgeError as error:
        if not any(record["judge"] for record in records):
            raise
        errors.append(error.message)
    if not stopped() and all(record["scores"][JUDGE] is None for record in records):
        first = next((record["judge"] for record in records if record["judge"]), "")
        message = f"gave no reply with a number from 0 to {judge.scale:g}; the first reply was: {first[:200]!r}."
        raise JudgeError("judge_prompt", judge.model, message, 'Ask in the prompt for JSON: {"score": NUMBER}.')
    silent = sum(not record["judge"] for record in records)
    return {JUDGE: Trouble(silent, f"{JUDGE}: {errors[0].rstrip('.')}", JUDGE)} if errors else {}
