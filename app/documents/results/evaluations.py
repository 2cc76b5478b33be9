"""Evaluations: what was asked for, what the scores show, and the answers row by row. Read-only."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from statistics import fmean
from typing import Any
from weakref import WeakKeyDictionary

from pydantic import Field
from sqlmodel import Session, col, select

from app.documents import Document, Stored, columns
from app.documents.results.evaluated_rows import MOST_SCORES, NOT_READABLE, Row, file_of
from training import json_files
from training.config.name_values import MINOR_METRICS
from training.scoring import score_card
from training.scoring.fingerprints import fingerprints, of_judge
from training.scoring.paired import Paired, compare
from training.scoring.request import BASE, CARD, RESULT
from training.scoring.score_card import ScoreCard
from worker.evaluations.reward_trial import TriedRewards
from worker.store import evaluations, runs, sight
from worker.store.tables import Dataset, Evaluation, Status

UNRECORDED = ScoreCard()
Key = tuple[str, int, bytes]
"""A row: the data that it is from, its number there, and the hash of the expected text."""


@dataclass(frozen=True, eq=False)
class ScoredRows:
    """The scores of answered rows by name, with their score card, and the names of those that are no shares, also if all lie from 0
    to 1. Two of them are never equal, so that comparisons are cached by object."""

    rows: dict[Key, dict[str, float]]
    card: ScoreCard = UNRECORDED
    unbounded: frozenset[str] = frozenset()
    comparisons: "WeakKeyDictionary[ScoredRows, PairedScores]" = field(default_factory=WeakKeyDictionary)
    """With others, as long as both are known."""

    def __bool__(self) -> bool:
        return bool(self.rows)


NOTHING = ScoredRows({})


_MOST_SCORED = 500_000
"""Scores that are compared, where a row counts as four more: 100,000 rows with one score."""


def read_scores(
    path: Path, data: str, scores_of: Callable[[dict[str, Any]], Mapping[str, Any]]
) -> dict[Key, dict[str, float]]:
    """The scores of the rows in a file of answers. Raises one of NOT_READABLE if they are too many to be compared."""
    found: dict[Key, dict[str, float]] = {}
    names: set[str] = set()
    count = 0
    for record in json_files.lines(path):
        scores = {name: float(value) for name, value in scores_of(record).items() if value is not None}
        names |= scores.keys()
        count += len(scores) + 4
        if len(names) > MOST_SCORES or count > _MOST_SCORED:
            raise ValueError("has too many scores")
        found[row_key(data, record)] = scores
    return found


def row_key(data: str, record: Mapping[str, Any]) -> Key:
    """The row of a record."""
    return data, int(record["row"]), sha256(str(record["expected"]).encode()).digest()


class Differing(Document):
    """A field of two score cards that differs, such as decoding.max_new_tokens, with both values; null: it was not recorded."""

    field: str
    first: Any
    second: Any


@dataclass(frozen=True)
class PairedScores:
    """What the scores of the rows that both have show, by the name of the score. `differs`: why some scores, or all, are not
    compared."""

    scores: dict[str, Paired] = field(default_factory=dict)
    differs: list[Differing] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.scores or self.differs)


def paired(first: ScoredRows, second: ScoredRows) -> PairedScores:
    """Compares two sets of scores; empty without rows that both have. A row without a score is left out of that score only."""
    found = first.comparisons.get(second)
    if found is None:
        found = first.comparisons[second] = _paired(first, second)
    return found


def _paired(first: ScoredRows, second: ScoredRows) -> PairedScores:
    common = [key for key in first.rows if key in second.rows]
    if not common:
        return PairedScores()
    sides = first.rows, second.rows
    named = [dict.fromkeys(name for key in common for name in rows[key]) for rows in sides]
    general = score_card.differences(first.card, second.card)
    scores, differs = {}, list(general)
    for name in (name for name in named[0] if name in named[1] and name not in MINOR_METRICS):
        own = score_card.of_metric(first.card, second.card, name)
        differs += own
        both = [key for key in common if all(name in rows[key] for rows in sides)]
        if both and not general and not own:
            before, after = ([rows[key][name] for key in both] for rows in sides)
            shown = compare(before, after, unbounded=name in first.unbounded | second.unbounded)
            scores[name] = replace(shown, common=len(common))
    return PairedScores(scores, [Differing(**one._asdict()) for one in differs])


def paired_any(first: Sequence[ScoredRows], second: Sequence[ScoredRows]) -> PairedScores:
    """What the first pair of sets with equal score cards and common rows shows; else why the first one with common rows is not
    compared; empty without one."""
    pairs = [found for one in first for other in second if (found := paired(one, other))]
    return next((found for found in pairs if found.scores), pairs[0] if pairs else PairedScores())


_FIELDS = (
    "id", "run_id", "owner", "status", "created_at", "started_at", "finished_at", "attempt", "device", "stopping", "phase", "done",
    "total", "overlap", "summary", "error", "reason",
)  # fmt: skip
MOST_ROWS = 1000


class Against(Document):
    """Another evaluation of the same rows, and by metric what the scores show: difference, interval, verdict."""

    evaluation: str
    source: str
    scores: dict[str, dict[str, Any]]
    differs: list[Differing] = Field(description="where the score cards differ: such scores are not compared")
    comparisons: int = Field(description="models that were compared on this data set, this one included")


@columns(Evaluation, _FIELDS)
class EvaluationAnswer(Stored):
    """An evaluation: what was asked for, its progress, and its means. Times are seconds since the epoch."""

    source: str
    data: str
    sha256: str
    columns: str | None
    asked_rows: int | None
    shots: int = Field(description="training rows in each prompt")
    of_training: bool = Field(description="the rows are drawn from those that the run trained on")
    exclude_leaked_rows: bool = Field(description="rows that training rows contain were not answered")
    suite: str = Field(description="the suite that it belongs to, or empty")
    metrics: list[str]
    lm_eval: list[str]
    judge: dict[str, Any] | None
    card: ScoreCard | None = Field(description="what its scores depend on; null before it has answers")
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


def document(
    item: Evaluation, against: Evaluation | None = None, comparisons: int = 0, hidden: Collection[str] = ()
) -> EvaluationAnswer:
    """An evaluation; `against` is another one that answered the same rows, one of so many `comparisons` on them. `hidden` are
    hashes of data that are not shown."""
    request = item.asked
    card = card_of(item) if item.status is Status.FINISHED and not request.lm_eval else None
    shown, hides = item.shown(*_FIELDS), request.sha256 in hidden
    if hides and shown["summary"]:
        shown["summary"] = {name: value for name, value in shown["summary"].items() if name != CARD}
    return EvaluationAnswer(
        **shown,
        source=request.source,
        data=request.name,
        sha256="" if hides else request.sha256,
        columns=request.columns,
        asked_rows=request.rows,
        shots=request.shots,
        of_training=request.of_training,
        exclude_leaked_rows=request.exclude_leaked_rows,
        suite=request.suite,
        metrics=list(request.metrics),
        lm_eval=list(request.lm_eval),
        judge=request.judge.model_dump() if request.judge else None,
        card=card.model_copy(update={"sha256": ""}) if card and hides else card,
        against=_against(item, against, comparisons) if against else None,
    )


def trial(tried: TriedRewards) -> RewardTrial:
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


def card_of(item: Evaluation) -> ScoreCard:
    """The score card of a finished evaluation; of one by an earlier version what its request tells."""
    request = item.asked
    if stored := (item.summary or {}).get(CARD):
        return ScoreCard.model_validate(stored)
    longest = {"max_new_tokens": request.max_new_tokens} if request.max_new_tokens else {}
    return ScoreCard(
        data=request.name,
        sha256=request.sha256,
        columns=request.columns,
        decoding=longest,
        metrics=fingerprints(request),
        judge=of_judge(request.judge),
        weights={"source": request.source},
    )


def _against(item: Evaluation, other: Evaluation, comparisons: int) -> Against:
    found = compared(other, item)
    return Against(
        evaluation=other.id,
        source=other.asked.source,
        scores={name: shown.document() for name, shown in found.scores.items()},
        differs=found.differs,
        comparisons=comparisons,
    )


def show(session: Session, evaluation_id: str) -> EvaluationAnswer:
    """One evaluation, compared with the one that `baseline` chooses. Raises EvaluationNotFound if none has this id."""
    item = evaluations.get(session=session, evaluation_id=evaluation_id)
    return _documents(session, evaluations.of_run(session=session, run_id=item.run_id), [item])[0]


def listing(session: Session, run_id: str) -> EvaluationList:
    """The evaluations of a run, each compared with the one that `baseline` chooses.

    Raises:
        RunNotFound: no run has this id.
    """
    run = runs.get(session=session, run_id=run_id)
    items = evaluations.of_run(session=session, run_id=run.id)
    return EvaluationList(evaluations=_documents(session, items, items))


def _documents(session: Session, items: Sequence[Evaluation], shown: Sequence[Evaluation]) -> list[EvaluationAnswer]:
    """Those that are `shown`, each compared with one of the `items`, all those of its run."""
    counts = evaluations.models_by_data(session=session, digests={item.asked.sha256 for item in shown})
    hidden = hidden_data(session, shown)
    return [document(item, baseline(item, items), counts.get(item.asked.sha256, 0), hidden) for item in shown]


def hidden_data(session: Session, items: Sequence[Evaluation]) -> set[str]:
    """The content hashes, with which ids begin, of data sets that evaluations of other users name and the user does not see."""
    user = sight.user()
    others = {item.asked.sha256 for item in items if user not in (None, item.owner)}
    seen = set(session.exec(select(Dataset.sha256).where(col(Dataset.sha256).in_(others)))) if others else set()
    return others - seen


def baseline(item: Evaluation, others: Sequence[Evaluation]) -> Evaluation | None:
    """The evaluation on the same data with which one is compared: the newest of the base model, else the first one of the run;
    one with an equal score card before others."""
    if item.status is not Status.FINISHED or _is_plain_base(item):
        return None
    same = [one for one in others if one.id != item.id and one.status is Status.FINISHED and _data(one) == _data(item)]
    same = [one for one in same if not score_card.differences(card_of(one), card_of(item))] or same
    base = [one for one in same if _is_plain_base(one)]
    earlier = [one for one in same if one.id < item.id and one.asked.source != item.asked.source]
    return max(base, key=lambda one: one.id) if base else min(earlier, key=lambda one: one.id, default=None)


def _is_plain_base(item: Evaluation) -> bool:
    """True for the model before training, without rows of the training data in its prompts."""
    return item.asked.source == BASE and not item.asked.shots


def compared(first: Evaluation, second: Evaluation) -> PairedScores:
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
    path = file_of(item)
    metrics = (item.summary or {}).get("metrics") or {}
    unbounded = frozenset(name for name, value in metrics.items() if value.get("unbounded"))
    try:
        return _scores(path, path.stat().st_mtime_ns, item.asked.sha256, card_of(item).model_dump_json(), unbounded)
    except NOT_READABLE:
        return NOTHING


def _data(item: Evaluation) -> tuple[str, str]:
    return item.asked.sha256, str(item.asked.columns)


@lru_cache(maxsize=8)
def _scores(path: Path, _modified: int, data: str, card: str, unbounded: frozenset[str]) -> ScoredRows:
    found = read_scores(path, data, lambda record: record["scores"])
    return ScoredRows(found, ScoreCard.model_validate_json(card), unbounded)
