"""The heading, the field that adds runs and the notices of the page Compare. Pure."""

import json

from markupsafe import Markup

from app.documents.comparison.document import MOST_RUNS, Comparison
from app.documents.comparison.results import same_data
from app.pages.common.html import each
from app.pages.compare.view import View
from app.words import numbers

COLORS = 10
"""The style sheet has so many colors of runs; after them they are repeated with another dash pattern."""


def heading(view: View, comparison: Comparison) -> Markup:
    """The title, and the buttons that copy and download."""
    title = f"Compare {numbers.plural(len(comparison.runs), 'run')}" if comparison.runs else "Compare runs"
    template = Markup('<div class="title" data-query="{}"><h1>{}</h1><div class="links compare-actions">{}</div></div>')
    return template.format(view.query, title, _buttons(view, comparison) if comparison.runs else "")


def _buttons(view: View, comparison: Comparison) -> Markup:
    runs = ",".join(run.id for run in comparison.runs)
    query = f"runs={runs}{'&all_settings=true' if view.all_settings else ''}"
    return Markup(
        '<button type="button" class="button" data-copy-link data-what="Link">Copy link</button>'
        '<button type="button" class="button" data-copy-from="/api/compare.md?{0}" data-what="Markdown">Copy Markdown</button>'
        '<button type="button" class="button" data-copy-from="/api/compare.csv?{0}" data-what="CSV">Copy CSV</button>'
        '<a class="button" href="/api/compare.csv?{0}" download>Download CSV</a>'
        '<span class="note" role="status"></span>'
    ).format(query)


def add_field() -> Markup:
    """The search field that adds a run; static/compare.js fills its list."""
    return Markup(
        '<div class="add-run"><input type="search" role="combobox" aria-expanded="false" aria-autocomplete="list" '
        'aria-controls="add-run-list" aria-label="Add a run by name or id" placeholder="Add a run by name or id" '
        'autocomplete="off" spellcheck="false"><ul id="add-run-list" role="listbox" aria-label="Matching runs" hidden></ul></div>'
    )


def notices(view: View, comparison: Comparison) -> Markup:
    """Runs that were not found, and what to know about this comparison; the empty state without runs."""
    alerts = [
        (
            f"Run “{error.problem.value}” {error.message}",
            error.problem.value,
            json.dumps({"remove": str(error.problem.value)}),
        )
        for error in comparison.missing
    ]
    missing = each(
        '<div class="alert" role="alert">{} <button type="button" class="button small" aria-label="Remove {} from the comparison" '
        'data-send="{}">Remove</button></div>',
        alerts,
    )
    notes = each('<p class="note">{}</p>', [(note,) for note in _notes(view, comparison)])
    return missing + (notes if comparison.runs else _empty())


def _notes(view: View, comparison: Comparison) -> list[str]:
    notes = []
    if view.dropped:
        left_out = numbers.plural(view.dropped, "run")
        notes.append(f"Showing the first {MOST_RUNS} runs. {left_out} of the address did not fit.")
    if len(comparison.runs) == 1:
        notes.append("Add another run to see what differs.")
    if not same_data(comparison.runs, evaluated=True):
        notes.append("The runs have different tasks or evaluation data: compare their losses and scores with care.")
    return notes


def _empty() -> Markup:
    return Markup(
        '<div class="empty"><h2>No runs to compare</h2><p>Select runs on the page Runs and press Compare, or add them above '
        "by name or id. The address of this page names the runs, so you can share it.</p>"
        '<a class="button" href="/">Choose runs</a></div>'
    )


def swatch(place: int) -> Markup:
    """A piece of the run's line in the plots: color and dash pattern by its place in the address."""
    return Markup(
        '<svg class="swatch" width="22" height="8" aria-hidden="true"><line x1="1" y1="4" x2="21" y2="4" '
        'class="run-color-{} dash-{}"/></svg>'
    ).format(place % COLORS + 1, place // COLORS)
