"""Whether a run answers the same rows better than the first of a comparison: paired by row, with intervals."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from app.documents.comparison.result_lines import Line
from app.documents.results.evaluated_rows import NOT_READABLE
from app.documents.results.evaluations import (
    NOTHING,
    Differing,
    ScoredRows,
    paired_any,
    read_scores,
)
from training.run_folder.paths import ANSWERS_FILE
from training.scoring.paired import Paired, Verdict
from training.scoring.request import CARD
from training.scoring.score_card import ScoreCard
from worker.settings import get_settings
from worker.store.tables import Run

Answered = Mapping[str, Sequence[ScoredRows]]
"""By run: the scores of its answers to held-out rows, then those of its evaluations, newest first."""


@dataclass(frozen=True)
class Against:
    """A run against the first one: what its scores show by name; `reason` if they cannot be compared, and `differs` where the
    score cards differ."""

    run_id: str
    scores: dict[str, Paired] = field(default_factory=dict)
    reason: str = ""
    differs: list[Differing] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """The values for JSON."""
        return {
            "run": self.run_id,
            "scores": {name: found.document() for name, found in self.scores.items()},
            "reason": self.reason,
            "differs": [one.model_dump() for one in self.differs],
        }


def against_first(runs: Sequence[Run], answered: Answered) -> list[Against]:
    """Each run against the first one; empty if fewer than two runs have answers on this machine."""
    if sum(bool(answered[run.id]) for run in runs) < 2:
        return []
    first, *others = runs
    if not answered[first.id]:
        return [Against(run.id, reason="The first run has no answers on this machine.") for run in others]
    return [_against(run, answered[first.id], answered[run.id]) for run in others]


def marked(lines: Sequence[Line], runs: Sequence[Run], answered: Answered) -> list[Line]:
    """The lines, with the best held-out score marked only if it is shown to be better than that of every other run."""
    return [_marked(line, runs, answered) if line.group == "Held-out" and line.best else line for line in lines]


def held_out(run: Run) -> ScoredRows:
    """The scores of the answers that a run gave to held-out rows after training; empty without them on this machine."""
    path = get_settings().runs_dir / run.id / ANSWERS_FILE
    try:
        card = ((run.summary or {}).get("answers") or {}).get(CARD)
        return _read(path, path.stat().st_mtime_ns, _data(run), json.dumps(card or {}))
    except NOT_READABLE:
        return NOTHING


def _against(run: Run, first: Sequence[ScoredRows], second: Sequence[ScoredRows]) -> Against:
    if not second:
        return Against(run.id, reason="It has no answers on this machine.")
    found = paired_any(first, second)
    if not found:
        return Against(run.id, reason="It did not answer the same rows as the first run.")
    reason = "" if found.scores else "The answers were not made and scored in the same way."
    return Against(run.id, found.scores, reason, found.differs)


def _marked(line: Line, runs: Sequence[Run], answered: Answered) -> Line:
    name = line.key.removesuffix("_after")
    scored = [run.id for run, value in zip(runs, line.values, strict=True) if value is not None]
    (best, *more) = (runs[place].id for place in line.best)
    pairs = [paired_any(answered[other], answered[best]) for other in scored if other != best]
    shown = [found.scores.get(name) for found in pairs if found]
    if more or any(found is None or found.verdict is not Verdict.BETTER for found in shown):
        return replace(line, best=frozenset())
    return line


def _data(run: Run) -> str:
    """The digests of the data that the held-out rows are from."""
    prefix = "validation_data" if "validation_data" in run.fingerprints else "data"
    return " ".join(digest for key, digest in run.fingerprints.items() if key.startswith(prefix))


@lru_cache(maxsize=8)
def _read(path: Path, _modified: int, data: str, card: str) -> ScoredRows:
    return ScoredRows(read_scores(path, data, _after), ScoreCard.model_validate_json(card))


def _after(record: dict[str, Any]) -> dict[str, float]:
    scores = {key.removesuffix("_after"): float(value) for key, value in record.items() if key.endswith("_after")}
    return {"exact_match": scores.pop("match", 0.0)} | scores
