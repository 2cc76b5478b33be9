"""The page Compare, at /compare?runs=ID,ID,...: runs in one table, their settings side by side, their metrics in the same plots."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any
from urllib.parse import urlencode

from starlette.datastructures import QueryParams

from app.documents.comparison.document import MOST_RUNS, Comparison, compare, split_ids
from app.documents.comparison.result_lines import Line, same_data
from app.documents.comparison.texts import reasons
from app.documents.run import RunGroup
from app.format import numbers
from app.format.evaluation_text import comparisons, label
from app.format.run_text import method, short_names, status_shown
from app.pages.common import grouping
from app.pages.common.run_plots import plotted, strokes
from app.pages.common.view import Context, View
from app.texts import _, gettext_noop
from training.scoring.paired import Verdict, in_words
from worker.store import database
from worker.store.runs import LONGEST_ID

_LIVE_SECONDS, _ENDED_SECONDS = 3.0, 20.0
_LONGEST_KEY = 60
_MOST_COLUMNS = 8
"""Settings that differ have columns beside the results; more are only rows of the table of settings."""
_CLASSES = {Verdict.BETTER: "good", Verdict.WORSE: "bad", Verdict.NONE: "none"}
_SETTINGS = gettext_noop("Settings")


@dataclass(frozen=True)
class Selection:
    """What an address asks for: runs (ids, or what was typed), the column that sorts the table, what groups the runs, and which
    settings are shown.

    `dropped` counts runs beyond the most that one page shows.
    """

    runs: tuple[str, ...] = ()
    order: str = ""
    descending: bool = False
    group: str = ""
    all_settings: bool = False
    dropped: int = 0

    @classmethod
    def of(cls, query: Mapping[str, str]) -> "Selection":
        """The selection in an address; `add` names further runs, as the field does without a script."""
        typed = split_ids(f"{query.get('runs', '')} {query.get('add', '')}")
        return cls(
            order=query.get("order", "")[:_LONGEST_KEY],
            descending=query.get("descending") == "1",
            group=grouping.known(query.get("group", "")),
            all_settings=query.get("all") == "1",
        ).showing(typed)

    def showing(self, ids: Sequence[str]) -> "Selection":
        """The selection of other runs, each once."""
        unique = list(dict.fromkeys(run_id[:LONGEST_ID] for run_id in ids))
        return replace(self, runs=tuple(unique[:MOST_RUNS]), dropped=max(len(unique) - MOST_RUNS, 0))

    def without(self, run_id: str) -> str:
        """The address without a run."""
        return self.showing([other for other in self.runs if other != run_id]).query

    def ordered_by(self, order: str) -> str:
        """The address sorted by a column: ascending, then descending, then again in the order of the address."""
        if order != self.order:
            return replace(self, order=order, descending=False).query
        return replace(self, order="" if self.descending else order, descending=not self.descending).query

    @property
    def turned(self) -> str:
        """The address with the opposite order."""
        return replace(self, descending=not self.descending).query

    def sort(self, key: str) -> str:
        """How the table is sorted by a column, as aria-sort."""
        return ("descending" if self.descending else "ascending") if self.order == key else "none"

    def values(self) -> dict[str, str]:
        """The selection as an address has it, without default values."""
        values = {
            "runs": ",".join(self.runs),
            "order": self.order,
            "descending": "1" if self.descending else "",
            "group": self.group,
            "all": "1" if self.all_settings else "",
        }
        return {name: value for name, value in values.items() if value}

    @property
    def query(self) -> str:
        """The same as the query of an address."""
        return "?" + urlencode(self.values(), safe=",")


def comparison(query: QueryParams) -> Context:
    """The comparison that an address asks for."""
    asked = Selection.of(query)
    with database.read() as session:
        compared = compare(session, asked.runs, all_settings=asked.all_settings, group=asked.group)
    missing = [str(error.problem.value) for error in compared.missing]
    scores = dict.fromkeys(score for other in compared.against for score in other.scores)
    selection = replace(asked.showing([*(run.id for run in compared.runs), *missing]), dropped=asked.dropped)
    methods = [method(run.settings) for run in compared.runs]
    first_columns = _first_columns(methods)
    settings = _setting_columns(compared.settings)
    results = [line for line in compared.results if not line.minor]
    rows = compared.settings if asked.all_settings or len(settings) < len(_differing(compared.settings)) else []
    same = [line for line in results if len(compared.runs) > 1 and len(set(line.texts)) == 1]
    lines = [*settings, *(line for line in results if line not in same)]
    return {
        "selection": selection,
        "comparison": compared,
        "names": short_names(compared.runs),
        "methods": methods,
        "status": status_shown,
        "strokes": strokes(run.id for run in compared.runs),
        "groups": _groups(compared, _places(selection, compared, lines)),
        "columns": [place for part in _groups(compared, range(len(compared.runs))) for place in part[1]],
        "groupings": grouping.choices([line.key for line in compared.settings if line.differs], asked.group),
        "first_columns": first_columns,
        "heads": [*("" for _column in first_columns), *(_(line.label) for line in lines)],
        "results": [(heading, list(part)) for heading, part in groupby(lines, key=lambda line: line.group)],
        "same": [(_(line.label), line.texts[0]) for line in same],
        "setting_rows": rows,
        "heading_of_settings": _heading_of(rows, all_settings=asked.all_settings),
        "scores": list(scores),
        "score_labels": list(map(label, scores)),
        "verdict_classes": _CLASSES,
        "notes": list(_notes(selection, compared)),
        "plotted": plotted(compared.runs),
        "in_words": in_words,
        "reasons": reasons,
        "counted": comparisons(len(compared.against)),
        "seconds": _ENDED_SECONDS if all(run.status.ended for run in compared.runs) else _LIVE_SECONDS,
    }


def _first_columns(methods: Sequence[str]) -> dict[str, str]:
    """The columns before the settings and results, by key; runs of one method need no column for it."""
    method_differs = len(set(methods)) > 1 or len(methods) == 1
    return {"name": _("Name"), "status": _("Status")} | ({"method": _("Method")} if method_differs else {})


def _differing(settings: Sequence[Line]) -> list[Line]:
    """The settings that differ and are not seen from the method's column."""
    return [line for line in settings if line.differs and line.key != "method"]


def _setting_columns(settings: Sequence[Line]) -> list[Line]:
    """The settings that differ as columns beside the results; none if they are too many."""
    differing = _differing(settings)
    if len(differing) > _MOST_COLUMNS:
        return []
    return [replace(line, group=_SETTINGS, short=line.label) for line in differing]


def _heading_of(rows: Sequence[Line], *, all_settings: bool) -> str:
    """The heading of the table whose rows are settings and what differs besides."""
    if all_settings:
        return _("Settings")
    return _("Settings that differ") if rows else _("What else differs")


def _notes(selection: Selection, compared: Comparison) -> Iterator[str]:
    """What to know about a comparison."""
    if selection.dropped:
        left_out = numbers.plural(selection.dropped, "run", "runs")
        yield _("Showing the first {most} runs. {runs} of the address did not fit.").format(
            most=MOST_RUNS, runs=left_out
        )
    if len(compared.runs) == 1:
        yield _("Add another run to see what differs.")
    elif not any(line.differs for line in compared.settings):
        yield _("All settings are the same.")
    if not same_data(compared.runs, evaluated=True):
        yield _("The runs have different tasks or evaluation data: compare their losses and scores with care.")


def _places(selection: Selection, compared: Comparison, lines: Sequence[Line]) -> list[int]:
    """The places of the runs in the order of the table; runs without a value come last."""
    places = list(range(len(compared.runs)))
    columns: dict[str, list[Any]] = {line.key: line.sortable for line in lines} | {
        "name": [run.name.lower() for run in compared.runs],
        "status": [run.status.value for run in compared.runs],
        "method": [method(run.settings) for run in compared.runs],
    }
    if selection.order not in columns:
        return places
    values = columns[selection.order]
    valued = sorted((place for place in places if values[place] is not None), key=lambda place: values[place])
    without = [place for place in places if values[place] is None]
    return (valued[::-1] if selection.descending else valued) + without


def _groups(compared: Comparison, places: Sequence[int]) -> list[tuple[RunGroup | None, list[int]]]:
    """The places of the runs in each group, in the same order; all of them without a group."""
    if not compared.groups:
        return [(None, list(places))]
    return [(group, [place for place in places if compared.runs[place].id in group.runs]) for group in compared.groups]


view = View("/compare", "compare.html", comparison)
