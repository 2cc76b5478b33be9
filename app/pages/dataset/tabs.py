"""The content of each tab of a data set's page."""

from markupsafe import Markup

from app.access import callers
from app.pages.common.html import panel
from app.pages.common.issues import place
from app.pages.dataset import snapshot
from app.pages.dataset.batches import batches_html, waste_html
from app.pages.dataset.columns import columns_html, paths
from app.pages.dataset.html import alert_html, progress_html
from app.pages.dataset.lengths import histogram_html, longest_html, quality_html, scripts_html, untrained_html
from app.pages.dataset.rows import found_html, page_html
from app.pages.dataset.snapshot import Tokenized
from app.pages.dataset.tokens import tokens_html
from app.pages.dataset.view import MEASURED, View, to
from training.data.row_formats import UNKNOWN
from training.errors import DataError
from worker.datasets.token_counts import TokenCount
from worker.store.tables import Dataset


def body(view: View, item: Dataset) -> tuple[Markup, bool]:
    """The content of the view's tab, and true if it waits for the data set to be tokenized."""
    if view.tab == "columns":
        return _columns(view, item), False
    if view.tab not in MEASURED:
        return _rows(view, item)
    if item.shape == UNKNOWN and not item.columns_map:
        return _unmapped(view), False
    tokenized = snapshot.tokenized(item, view)
    if not isinstance(tokenized, Tokenized):
        return _not_tokenized(tokenized), tokenized.status != "failed"
    return {"tokens": _tokens, "lengths": _lengths, "batches": _batches}[view.tab](view, tokenized), False


def _rows(view: View, item: Dataset) -> tuple[Markup, bool]:
    try:
        if not view.search:
            return page_html(snapshot.rows(item, view), item.columns, view, item.rows, snapshot.reachable(item)), False
        search = snapshot.search(item, view)
        waiting = search.state == "running"  # asked before its rows are read: the last of them are not missed
        return found_html(snapshot.with_whole(item, view, search), item.columns, view, item.rows), waiting
    except DataError as error:
        where = f"Row {error.line:,}" if error.line else "The file"
        return alert_html("Could not read the rows.", f"{where} {error.message}", error.fix), False


def _columns(view: View, item: Dataset) -> Markup:
    mapping, kind = snapshot.mapping_of(view, item), snapshot.kind_shown(view, item)
    preview, allowed = snapshot.preview(item, mapping, kind), callers.current().may_change(item.owner)
    return columns_html(mapping, kind, paths(item.sample), preview, view, item.columns_map, allowed=allowed)


def _unmapped(view: View) -> Markup:
    note = Markup('<p class="note">Unknown format: Lathe cannot tokenize the rows yet. {}</p>')
    return panel("Column mapping needed", note.format(to(view, "Map the columns", tab="columns")))


def _tokens(view: View, tokenized: Tokenized) -> Markup:
    return tokens_html(snapshot.tokens(tokenized, view), view, snapshot.stops(tokenized, view))


def _lengths(view: View, tokenized: Tokenized) -> Markup:
    report, curve = tokenized.report(view), snapshot.curve_of(tokenized, view)
    losses = [curve.at(limit) for limit in snapshot.usual_stops(tokenized.store)]
    cells = [
        ("whole", histogram_html(curve, view, report["tokens"])),
        ("half stack", untrained_html(losses, view) + quality_html(snapshot.quality(tokenized, view), view)),
        ("half stack", longest_html(report["longest_rows"], view) + scripts_html(report["scripts"])),
    ]
    return _grid(cells)


def _batches(view: View, tokenized: Tokenized) -> Markup:
    report = tokenized.report(view)
    batches = batches_html(report["worst_batches"], view)
    return _grid(
        [("two-thirds", batches), ("third", waste_html(report["padding_waste"], report["packing_waste"], view))]
    )


def _grid(cells: list[tuple[str, Markup]]) -> Markup:
    shown = Markup("").join(Markup('<div class="{}">{}</div>').format(*cell) for cell in cells if cell[1])
    return Markup('<div class="columns">{}</div>').format(shown)


def _not_tokenized(state: TokenCount) -> Markup:
    if state.status == "failed" and state.problem:
        problem = state.problem
        alert = alert_html("Could not tokenize the data set.", f"{place(problem)} {problem['message']}", problem["fix"])
        return alert + Markup(
            """<p><button type="button" class="button" data-send='{"again": true}'>Try again</button></p>"""
        )
    return progress_html(state.done, state.total)
