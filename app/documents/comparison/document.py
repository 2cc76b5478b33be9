"""The comparison of runs: results, settings that differ, and other differences."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlmodel import Session

from app.documents.comparison.configured import circumstances, configured
from app.documents.comparison.line import Line
from app.documents.comparison.paired import Against, against_first, held_out, marked
from app.documents.comparison.results import results
from app.documents.results.evaluations import of_results
from app.words.runs import method
from training.errors import UserError
from worker.datasets import datasets
from worker.store import runs
from worker.store.runs import RunNotFound
from worker.store.tables import Run

MOST_RUNS = 50


class TooManyRuns(UserError):  # noqa: N818
    """More runs than one comparison shows."""


@dataclass(frozen=True)
class Comparison:
    """Runs in the order asked for, with a line for each result, setting and other difference; `missing` are ids of no run."""

    runs: list[Run] = field(default_factory=list)
    missing: list[RunNotFound] = field(default_factory=list)
    results: list[Line] = field(default_factory=list)
    settings: list[Line] = field(default_factory=list)
    circumstances: list[Line] = field(default_factory=list)
    against: list[Against] = field(default_factory=list)
    """The runs after the first one, by their answers to the same held-out rows."""

    def complete(self) -> "Comparison":
        """The comparison itself.

        Raises:
            RunNotFound: an id is of no run; has a problem for each.
        """
        if self.missing:
            first, *others = [error.problem for error in self.missing]
            raise RunNotFound(first.field, first.value, first.message, first.fix, *others)
        return self


def compare(session: Session, ids: Sequence[str], *, all_settings: bool = False) -> Comparison:
    """The comparison of the runs with these ids or unique beginnings of ids, each run once.

    Raises:
        TooManyRuns: there are more than 50 ids.
    """
    check_number(ids)
    found: dict[str, Run] = {}
    missing = []
    for run_id in dict.fromkeys(ids):
        try:
            run = runs.get(session=session, run_id=run_id)
            found.setdefault(run.id, run)
        except RunNotFound as error:
            missing.append(error)
    listed = list(found.values())
    used = runs.devices(session=session, run_ids=list(found))
    names = {item.id: item.name for item in datasets.listing(session=session)}
    differing = configured(listed, names, everything=all_settings)
    others = circumstances(listed, used)
    evaluated = of_results(session, list(found))
    answered = {run.id: [rows for rows in (held_out(run), *evaluated[run.id]) if rows] for run in listed}
    measures = marked(results(listed, used), listed, answered)
    return Comparison(listed, missing, measures, differing, others, against_first(listed, answered))


def check_number(ids: Sequence[str]) -> None:
    """Checks that one comparison can show so many runs.

    Raises:
        TooManyRuns: there are more than 50.
    """
    if len(ids) > MOST_RUNS:
        fix = f"Compare at most {MOST_RUNS} runs at once."
        raise TooManyRuns("runs", f"{len(ids)} ids", "are too many for one comparison.", fix)


def split_ids(text: str) -> list[str]:
    """The ids in a text that commas or spaces separate."""
    return text.replace(",", " ").split()


def as_json(comparison: Comparison) -> dict[str, Any]:
    """The comparison as a document: `runs`, then `measures`, `settings` and `circumstances` by key, each a list in the order of
    the runs.

    `best` has the positions (from 0) of the best value of the measures in which better is clear, `labels` the keys in words.
    `against_first` has the runs after the first one: what their answers to the same held-out rows show.
    """
    lines = (*comparison.results, *comparison.settings, *comparison.circumstances)
    return {
        "runs": [
            {
                "id": run.id,
                "name": run.name,
                "status": run.status.value,
                "method": method(run.config | run.stepped_down),
            }
            for run in comparison.runs
        ],
        "measures": {line.key: line.values for line in comparison.results},
        "best": {line.key: sorted(line.best) for line in comparison.results if line.best},
        "settings": {line.key: line.values for line in comparison.settings},
        "circumstances": {line.key: line.values for line in comparison.circumstances},
        "against_first": [found.document() for found in comparison.against],
        "labels": {line.key: line.label for line in lines},
    }
