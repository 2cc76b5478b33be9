"""Evaluations: what was asked for, what the scores show, and the answers row by row. Read-only."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import Field
from sqlmodel import Session

from app.documents import Document, Stored, columns
from training.config.name_values import MINOR_METRICS
from training.scoring.paired import Paired, compare
from training.scoring.request import BASE, RECORDS_FILE, RESULT
from worker.evaluations.reward_trial import Trial
from worker.evaluations.submit import folder_of
from worker.store import evaluations, runs
from worker.store.tables import Evaluation, Status

Key = tuple[str, int, str]
"""A row: the data that it is from, its number there, and the expected text."""


@dataclass(frozen=True, eq=False)
class ScoredRows:
    """The scores of answered rows by name. Two of them are never equal, so that comparisons are cached by object."""

    rows: dict[Key, dict[str, float]]

    def __bool__(self) -> bool:
        return bool(self.rows)


NOTHING = ScoredRows({})


@lru_cache(maxsize=2048)
def paired(first: ScoredRows, second: ScoredRows) -> dict[str, Paired]:
    """What the scores of the rows that both have show, by the name of the score; empty without such rows."""
    common = [key for key in first.rows if key in second.rows]
    if not common:
        return {}
    sides = first.rows, second.rows
    names = [name for name in first.rows[common[0]] if all(name in rows[key] for rows in sides for key in common)]
    return {
        name: compare([first.rows[key][name] for key in common], [second.rows[key][name] for key in common])
        for name in names
        if name not in MINOR_METRICS
    }


def paired_any(first: Sequence[ScoredRows], second: Sequence[ScoredRows]) -> dict[str, Paired]:
    """What the first pair of sets with common rows shows; empty without one."""
    pairs = (paired(one, other) for one in first for other in second)
    return next((found for found in pairs if found), {})


_FIELDS = (
    "id", "run_id", "owner", "status", "created_at", "started_at", "finished_at", "attempt", "device", "stopping", "phase", "done",
    "total", "overlap", "summary", "error", "reason",
)  # fmt: skip
MOST_ROWS = 1000


@dataclass(frozen=True)
class Row:
    """A row of an evaluation's table; `other` is the answer of the evaluation that it is compared with, `difference` of scores."""

    row: int
    prompt: str
    expected: str
    answer: str
    scores: dict[str, float | None]
    reply: str = ""
    other: str | None = None
    difference: float | None = None


class Against(Document):
    """Another evaluation of the same rows, and by metric what the scores show: difference, interval, verdict."""

    evaluation: str
    source: str
    scores: dict[str, dict[str, Any]]


@columns(Evaluation, _FIELDS)
class EvaluationAnswer(Stored):
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


class EvaluationList(Document):
    """The evaluations of a run, newest first."""

    evaluations: list[EvaluationAnswer]


class RewardEntry(Document):
    """A reward: its name, what computes it (a built-in name or FILE.py:FUNCTION), its weight in the total, and its mean."""

    name: str
    kind: str
    weight: float
    options: dict[str, Any]
    mean: float | None = Field(description="over the rows to which it applies")


class ScoredRow(Document):
    """A row with its rewards by name: null where one does not apply or failed. `total` is their weighted sum."""

    row: int
    prompt: str
    expected: str
    answer: str
    scores: dict[str, float | None]
    total: float | None


class RewardTrouble(Document):
    """What went wrong with a reward: the number of rows without a score for it, why the first has none, and the kind of fault."""

    failed: int
    sentence: str
    kind: str


class RewardTrial(Document):
    """Rows scored by rewards, and what went wrong with a reward, by its name."""

    rewards: list[RewardEntry]
    rows: list[ScoredRow]
    troubles: dict[str, RewardTrouble]
    seconds: float = Field(description="time that the rewards took")


class EvaluationRows(Document):
    """Answers row by row with their scores, and how many there are."""

    rows: list[Row]
    total: int


def document(item: Evaluation, against: Evaluation | None = None) -> EvaluationAnswer:
    """An evaluation; `against` is another one that answered the same rows."""
    request = item.asked
    return EvaluationAnswer(
        **item.shown(*_FIELDS),
        source=request.source,
        data=request.name,
        sha256=request.sha256,
        columns=request.columns,
        asked_rows=request.rows,
        metrics=list(request.metrics),
        lm_eval=list(request.lm_eval),
        judge=request.judge.model_dump() if request.judge else None,
        against=_against(item, against) if against else None,
    )


def trial(tried: Trial) -> RewardTrial:
    """What rewards gave for rows."""
    known = {name: [one for one in values if one is not None] for name, values in tried.values.items()}
    return RewardTrial(
        rewards=[
            RewardEntry(
                name=reward.name, kind=reward.kind, weight=reward.weight, options=reward.options,
                mean=fmean(known[reward.name]) if known[reward.name] else None,
            )
            for reward in tried.rewards
        ],
        rows=[
            ScoredRow(
                row=(sample.number or 0) + 1, prompt=sample.prompt, expected=sample.expected, answer=sample.answer,
                scores={name: values[index] for name, values in tried.values.items()}, total=tried.totals[index],
            )
            for index, sample in enumerate(tried.samples)
        ],
        troubles={name: RewardTrouble.model_validate(one) for name, one in tried.troubles.items()},
        seconds=tried.seconds,
    )  # fmt: skip


def _against(item: Evaluation, other: Evaluation) -> Against:
    scores = {name: shown.document() for name, shown in compared(other, item).items()}
    return Against(evaluation=other.id, source=other.asked.source, scores=scores)


def show(session: Session, evaluation_id: str) -> EvaluationAnswer:
    """One evaluation, compared with the one that `baseline` chooses. Raises EvaluationNotFound if none has this id."""
    item = evaluations.get(session=session, evaluation_id=evaluation_id)
    return document(item, baseline(item, evaluations.of_run(session=session, run_id=item.run_id)))


def listing(session: Session, run_id: str) -> EvaluationList:
    """The evaluations of a run, each compared with the one that `baseline` chooses.

    Raises:
        RunNotFound: no run has this id.
    """
    run = runs.get(session=session, run_id=run_id)
    items = evaluations.of_run(session=session, run_id=run.id)
    return EvaluationList(evaluations=[document(item, baseline(item, items)) for item in items])


def baseline(item: Evaluation, others: Sequence[Evaluation]) -> Evaluation | None:
    """The evaluation on the same data with which one is compared: the newest of the base model, else the first one of the run."""
    if item.status is not Status.FINISHED or item.asked.source == BASE:
        return None
    same = [one for one in others if one.id != item.id and one.status is Status.FINISHED and _data(one) == _data(item)]
    base = [one for one in same if one.asked.source == BASE]
    earlier = [one for one in same if one.id < item.id and one.asked.source != item.asked.source]
    return max(base, key=lambda one: one.id) if base else min(earlier, key=lambda one: one.id, default=None)


def compared(first: Evaluation, second: Evaluation) -> dict[str, Any]:
    """What the scores of the rows that both answered show (training.scoring.paired), by metric."""
    return paired(scored(first), scored(second))


def of_results(session: Session, run_ids: Sequence[str]) -> dict[str, list[ScoredRows]]:
    """The scores of the finished evaluations of the results of runs, newest first, by run."""
    found: dict[str, list[ScoredRows]] = {run_id: [] for run_id in run_ids}
    for item in evaluations.finished(session=session, run_ids=list(run_ids)):
        if item.asked.source == RESULT and (rows := scored(item)):
            found[item.run_id].append(rows)
    return found


def scored(item: Evaluation) -> ScoredRows:
    """The scores of an evaluation's rows, for comparisons; empty without answers on this machine."""
    path = folder_of(item) / RECORDS_FILE
    try:
        return _scores(path, path.stat().st_mtime_ns, item.asked.sha256)
    except (OSError, ValueError, KeyError):
        return NOTHING


def rows(item: Evaluation, against: Evaluation | None = None, metric: str = "") -> list[Row]:
    """The rows in the order of the file; with `against`, each with the other answer and the difference of `metric`."""
    others = {record["row"]: record for record in _records(against)} if against else {}
    return [_row(record, others.get(record["row"]), metric) for record in _records(item)]


def ordered(listed: list[Row], order: str, metric: str) -> list[Row]:
    """The rows sorted: "row", "lowest" or "highest" score of the metric, or "worse" or "better" by the difference first."""
    keys: dict[str, Any] = {
        "lowest": lambda row: (row.scores.get(metric) is None, row.scores.get(metric) or 0.0),
        "highest": lambda row: (row.scores.get(metric) is None, -(row.scores.get(metric) or 0.0)),
        "worse": lambda row: (row.difference is None, row.difference or 0.0),
        "better": lambda row: (row.difference is None, -(row.difference or 0.0)),
    }
    return sorted(listed, key=keys[order]) if order in keys else listed


def _data(item: Evaluation) -> tuple[str, str]:
    return item.asked.sha256, str(item.asked.columns)


def _row(record: dict[str, Any], other: dict[str, Any] | None, metric: str) -> Row:
    mine, theirs = (one["scores"].get(metric) if one else None for one in (record, other))
    difference = mine - theirs if mine is not None and theirs is not None else None
    prompt, expected, mine_text = (str(record[name]) for name in ("prompt", "expected", "answer"))
    answer = str(other["answer"]) if other else None
    reply, number = str(record.get("judge", "")), int(record["row"]) + 1
    return Row(number, prompt, expected, mine_text, record["scores"], reply, answer, difference)


def _records(item: Evaluation) -> list[dict[str, Any]]:
    path = folder_of(item) / RECORDS_FILE
    try:
        return _read(path, path.stat().st_mtime_ns)
    except (OSError, ValueError):
        return []


@lru_cache(maxsize=8)
def _read(path: Path, _modified: int) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as stream:
        return [json.loads(line) for line in stream]


@lru_cache(maxsize=64)
def _scores(path: Path, modified: int, data: str) -> ScoredRows:
    found = {
        (data, int(record["row"]), str(record["expected"])): {
            name: float(value) for name, value in record["scores"].items() if value is not None
        }
        for record in _read(path, modified)
    }
    return ScoredRows(found)
