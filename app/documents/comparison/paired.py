"""Whether a run answers the same rows better than the first of a comparison: paired by row, with intervals."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from training.run_folder.paths import ANSWERS_FILE
from training.scoring.paired import Paired, compare
from worker.settings import get_settings
from worker.store.tables import Run

_MINOR = ("rouge1", "rouge2")

Rows = Mapping[tuple[str, int, str], Mapping[str, float]]
"""The scores by name of each row: by data set, number in it, and expected text."""


@dataclass(frozen=True)
class Against:
    """A run against the first one: what its scores show by name; `reason` if they cannot be compared."""

    run_id: str
    scores: dict[str, Paired] = field(default_factory=dict)
    reason: str = ""

    def document(self) -> dict[str, Any]:
        """The values for JSON."""
        return {
            "run": self.run_id,
            "scores": {name: found.document() for name, found in self.scores.items()},
            "reason": self.reason,
        }


def against_first(runs: Sequence[Run]) -> list[Against]:
    """Each run against the first one; empty if fewer than two runs have answers to held-out rows on this machine."""
    answered = {run.id: held_out(run) for run in runs}
    if sum(bool(rows) for rows in answered.values()) < 2:
        return []
    first, *others = runs
    if not answered[first.id]:
        return [Against(run.id, reason="The first run has no answers on this machine.") for run in others]
    return [_against(run, answered[first.id], answered[run.id]) for run in others]


def paired(first: Rows, second: Rows) -> dict[str, Paired]:
    """What the scores of the rows that both have show, by the name of the score; empty without such rows."""
    common = [key for key in first if key in second]
    if not common:
        return {}
    names = [name for name in first[common[0]] if all(name in rows[key] for rows in (first, second) for key in common)]
    return {
        name: compare([first[key][name] for key in common], [second[key][name] for key in common])
        for name in names
        if name not in _MINOR
    }


def held_out(run: Run) -> Rows:
    """The scores of the answers that a run gave to held-out rows after training; empty without them on this machine."""
    path = get_settings().runs_dir / run.id / ANSWERS_FILE
    try:
        return _read(path, path.stat().st_mtime_ns, _data(run))
    except (OSError, ValueError, KeyError):
        return {}


def _against(run: Run, first: Rows, second: Rows) -> Against:
    if not second:
        return Against(run.id, reason="It has no answers on this machine.")
    found = paired(first, second)
    return Against(run.id, found, "" if found else "It did not answer the same rows as the first run.")


def _data(run: Run) -> str:
    """The digests of the data that the held-out rows are from."""
    prefix = "validation_data" if "validation_data" in run.fingerprints else "data"
    return " ".join(digest for key, digest in run.fingerprints.items() if key.startswith(prefix))


@lru_cache(maxsize=64)
def _read(path: Path, _modified: int, data: str) -> Rows:
    with path.open(encoding="utf-8") as stream:
        records = [json.loads(line) for line in stream]
    return {(data, int(record["row"]), str(record["expected"])): _after(record) for record in records}


def _after(record: dict[str, Any]) -> dict[str, float]:
    scores = {key.removesuffix("_after"): float(value) for key, value in record.items() if key.endswith("_after")}
    return {"exact_match": scores.pop("match", 0.0)} | scores
