"""The tables of the page Compare: a row for each run with its results, its held-out answers against the first run's, and a row
for each setting that differs. Pure.
"""

import json
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from markupsafe import Markup

from app.documents.comparison.document import Comparison
from app.documents.comparison.line import Line
from app.documents.comparison.paired import Against
from app.pages.common.html import each, note_html, panel, status_word, table
from app.pages.compare.html import swatch
from app.pages.compare.view import View
from app.words import numbers
from app.words.evaluations import label
from app.words.runs import method
from training.scoring.paired import Paired, Verdict
from training.scoring.words import in_words
from worker.store.tables import Run

_FIRST = (("name", "Name"), ("status", "Status"), ("method", "Method"))

_CLASSES = {Verdict.BETTER: "good", Verdict.WORSE: "bad", Verdict.NONE: "none"}
_NOTE = "Paired by row. A difference is called better or worse where its 95% interval excludes 0."


def results(view: View, comparison: Comparison) -> Markup:
    """The table of results; nothing without runs."""
    if not comparison.runs:
        return Markup("")
    lines = [line for line in comparison.results if not line.minor]
    body = Markup("").join(_row(comparison, lines, place) for place in _places(view, comparison, lines))
    shown = table("compared", _heads(view, lines), body)
    marked = any(line.best for line in lines)
    note = "The best value of a column is bold and underlined; a held-out score only where it is shown to be better."
    aside = Markup('<span class="note">{}</span>').format(note) if marked else ""
    return panel("Results", shown, aside=aside)


def settings(view: View, comparison: Comparison) -> Markup:
    """The table of settings, and of what differs outside of them; nothing without runs."""
    if not comparison.runs:
        return Markup("")
    runs = comparison.runs
    parts = [(line, line.differs) for line in comparison.settings]
    rows = Markup("").join(_setting_row(line, differs=differs and view.all_settings) for line, differs in parts)
    others = Markup("").join(_setting_row(line, differs=False) for line in comparison.circumstances)
    if others:
        rows += (
            Markup('<tr class="part"><th colspan="{}">Outside the settings</th></tr>').format(len(runs) + 1) + others
        )
    heads = Markup('<th class="setting-name">Setting</th>') + each(
        '<th title="{}"><span>{}<bdi>{}</bdi></span></th>',
        [(run.name, swatch(place), numbers.shorten(run.name, 40)) for place, run in enumerate(runs)],
    )
    same = "All settings are the same." if len(runs) > 1 else "One run has no differences."
    body = _focusable(table("compared settings", heads, rows)) if rows else note_html(same)
    switch = Markup(
        '<label class="switch"><input type="checkbox" id="all-settings" data-field="all"{}> All settings</label>'
    )
    heading = "Settings" if view.all_settings else "Settings that differ"
    return panel(heading, body, aside=switch.format(Markup(" checked") if view.all_settings else ""))


def _places(view: View, comparison: Comparison, lines: Sequence[Line]) -> list[int]:
    """The places of the runs in the order of the view; runs without a value come last."""
    places = list(range(len(comparison.runs)))
    keys = {line.key: line.values for line in lines} | {
        "name": [run.name.lower() for run in comparison.runs],
        "status": [run.status.value for run in comparison.runs],
        "method": [method(run.config | run.stepped_down) for run in comparison.runs],
    }
    if view.order not in keys:
        return places
    values = keys[view.order]
    known = sorted((place for place in places if values[place] is not None), key=lambda place: values[place])
    return (known[::-1] if view.descending else known) + [place for place in places if values[place] is None]


def _heads(view: View, lines: Sequence[Line]) -> Markup:
    """Two rows: headings of groups, then of columns. `table` puts them into one row, which the first ends."""
    groups = Markup('<td colspan="{}"></td>').format(len(_FIRST)) + each(
        '<th colspan="{}" class="group" scope="colgroup">{}</th>',
        [(len(list(members)), group) for group, members in groupby(lines, key=lambda line: line.group)],
    )
    first = Markup("").join(_head(key, label, label, view, "") for key, label in _FIRST)
    edges = _first_of_groups(lines)
    columns = Markup("").join(
        _head(line.key, line.short, line.label, view, f"number {'edge' if line.key in edges else ''}") for line in lines
    )
    return groups + Markup("</tr><tr>") + first + columns


def _head(key: str, label: str, title: str, view: View, classes: str) -> Markup:
    sort = ("descending" if view.descending else "ascending") if view.order == key else "none"
    return Markup(
        '<th class="{}" aria-sort="{}" scope="col"><button type="button" title="{}" data-send="{}">{}</button></th>'
    ).format(classes, sort, title, json.dumps({"order": key}), label)


def _row(comparison: Comparison, lines: Sequence[Line], place: int) -> Markup:
    run = comparison.runs[place]
    edges = _first_of_groups(lines)
    cells = each(
        '<td class="number {} {}" title="{}">{}</td>',
        [
            (
                "edge" if line.key in edges else "",
                "best" if place in line.best else "",
                line.notes[place],
                line.texts[place],
            )
            for line in lines
        ],
    )
    return Markup('<tr>{}<td>{}</td><td class="method">{}</td>{}</tr>').format(
        _name(run, place),
        status_word(run.status, run.request, differs=run.differs),
        method(run.config | run.stepped_down),
        cells,
    )


def _name(run: Run, place: int) -> Markup:
    remove = Markup(
        '<button type="button" class="remove" aria-label="Remove {} from the comparison" title="Remove" '
        'data-send="{}">&times;</button>'
    ).format(run.name, json.dumps({"remove": run.id}))
    return Markup(
        '<th class="run-name" scope="row"><span>{}<a href="/run?id={}" title="{} ({})"><bdi>{}</bdi></a>{}</span></th>'
    ).format(swatch(place), run.id, run.name, run.id, run.name, remove)


def _first_of_groups(lines: Sequence[Line]) -> set[str]:
    """The keys of the columns at which a group begins."""
    return {next(iter(members)).key for _, members in groupby(lines, key=lambda line: line.group)}


def _setting_row(line: Line, *, differs: bool) -> Markup:
    cells = each('<td title="{}">{}</td>', [_cell(line, place) for place in range(len(line.texts))])
    return Markup('<tr class="{}"><th scope="row" title="{}">{}</th>{}</tr>').format(
        "differs" if differs else "", line.key, line.label, cells
    )


def _focusable(shown: Markup) -> Markup:
    """A wide table without links, which the keyboard can scroll."""
    return Markup('<div class="scrolled" tabindex="0" role="region" aria-label="Settings of the runs">{}</div>').format(
        shown
    )


def _cell(line: Line, place: int) -> tuple[str, Any]:
    note, text = line.notes[place], line.texts[place]
    stepped = Markup("{}<sup>*</sup>").format(text) if "running out of memory" in note else text
    return note or (text if len(text) > 30 else ""), stepped


def against(comparison: Comparison) -> Markup:
    """A row for each run after the first one and a column for each score; nothing if no two runs answered held-out rows."""
    if not comparison.against:
        return Markup("")
    names = list(dict.fromkeys(name for found in comparison.against for name in found.scores))
    places = {run.id: (place, run.name) for place, run in enumerate(comparison.runs)}
    body = Markup("").join(_against_row(found, names, *places[found.run_id]) for found in comparison.against)
    first = Markup('<span class="note">against {}<bdi>{}</bdi></span>').format(swatch(0), comparison.runs[0].name)
    shown = table("compared against", ["Run", *map(label, names)], body)
    return panel("Held-out answers", shown + note_html(_NOTE), aside=first)


def _against_row(found: Against, names: Sequence[str], place: int, name: str) -> Markup:
    cells = each("{}", [(_against_cell(found.scores.get(score)),) for score in names])
    if not found.scores:
        cells = Markup('<td class="note" colspan="{}">{}</td>').format(max(len(names), 1), found.reason)
    head = Markup('<th class="run-name" scope="row"><span>{}<bdi>{}</bdi></span></th>')
    return Markup("<tr>{}{}</tr>").format(head.format(swatch(place), name), cells)


def _against_cell(shown: Paired | None) -> Markup:
    if shown is None:
        return Markup("<td></td>")
    return Markup('<td class="shown {}">{}</td>').format(_CLASSES[shown.verdict], in_words(shown))
