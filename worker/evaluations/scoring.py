"""Scores of an evaluation's answers beyond the built-in ones: functions in a user's file, a judge; and the means of all."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from training.errors import UserError
from training.scoring.intervals import mean_interval
from training.scoring.request import JUDGE, RECORDS_FILE, EvaluationRequest
from training.whole_file import write_whole
from worker.evaluations.judge import JudgeError, judged
from worker.machine import programs
from worker.machine.programs import Limits, ProgramError

_MEMORY_BYTES = 2 * 2**30
_SECONDS, _ROWS_PER_SECOND = 60, 20

Record = dict[str, Any]
Progress = Callable[[str, int, int], None]


class MetricFailed(UserError):  # noqa: N818
    """A metric of a user's file failed."""


def read_records(folder: Path) -> list[Record]:
    """The answers of an evaluation, a record for each row."""
    with (folder / RECORDS_FILE).open(encoding="utf-8") as stream:
        return [json.loads(line) for line in stream]


def add_scores(folder: Path, request: EvaluationRequest, progress: Progress, stopped: Callable[[], bool]) -> None:
    """Adds the scores of the user's functions and of the judge to answers.jsonl.

    Raises:
        MetricFailed: a function failed; names row and line.
        JudgeError: the judge did not answer, or no reply had a score.
    """
    if not request.own_metrics and JUDGE not in request.metrics:
        return
    records = read_records(folder)
    for metric, file, function in request.own_metrics:
        progress(f"scoring by {metric}"[:60], 0, 0)
        for record, score in zip(records, _own_scores(folder, metric, file, function, request, records), strict=True):
            record["scores"][metric] = score
    if JUDGE in request.metrics:
        _judge(request, records, progress, stopped)
    lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    write_whole(folder / RECORDS_FILE, "".join(lines))


def summarize(records: Sequence[Record], metrics: Sequence[str]) -> dict[str, Any]:
    """The number of rows, and of each metric its mean with the 95% interval and the rows that have a score."""
    found: dict[str, Any] = {}
    for metric in metrics:
        scores = [record["scores"][metric] for record in records if record["scores"].get(metric) is not None]
        if scores:
            low, high = mean_interval(scores)
            found[metric] = {"mean": fmean(scores), "low": low, "high": high, "rows": len(scores)}
    return {"rows": len(records), "metrics": found}


def _own_scores(
    folder: Path, metric: str, file: str, function: str, request: EvaluationRequest, records: Sequence[Record]
) -> list[float]:
    path = folder / file
    path.write_text(request.own[file], encoding="utf-8")
    limits = Limits(_MEMORY_BYTES, _SECONDS + len(records) // _ROWS_PER_SECOND)
    asked = [{name: record[name] for name in ("row", "prompt", "answer", "expected")} for record in records]
    text = "".join(json.dumps(record) + "\n" for record in asked)
    fix = "Correct the function; it takes prompt, answer and expected and returns a number."
    try:
        found = programs.run_for_json(programs.OWN_METRIC, [str(path.absolute()), function, file], limits, text=text)
    except ProgramError as error:
        raise MetricFailed("metrics", metric, f"did not finish: {error}.", fix) from None
    if not isinstance(found, dict) or "error" in found or len(found.get("scores", ())) != len(records):
        raise MetricFailed("metrics", metric, str(found.get("error") if isinstance(found, dict) else found), fix)
    return list(found["scores"])


def _judge(
    request: EvaluationRequest, records: Sequence[Record], progress: Progress, stopped: Callable[[], bool]
) -> None:
    judge = request.judge
    assert judge is not None
    progress("judging", 0, len(records))
    found = judged(judge, records, lambda done, total: progress("judging", done, total), stopped)
    for record, judgement in zip(records, found, strict=False):
        record["scores"][JUDGE], record["judge"] = judgement.score, judgement.reply
    if not stopped() and all(record["scores"][JUDGE] is None for record in records):
        message = f"gave no reply with a number from 0 to {judge.scale:g}; the first reply was: {records[0]['judge'][:200]!r}."
        raise JudgeError("judge_prompt", judge.model, message, 'Ask in the prompt for JSON: {"score": NUMBER}.')
