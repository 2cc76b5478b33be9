"""What stands under each tab of a data set's page, put together of what is known and the pieces of HTML."""

from markupsafe import Markup

from app import callers
from app.pages import dataset_data
from app.pages.dataset_batches import batches_html, waste_html
from app.pages.dataset_columns import columns_html, paths
from app.pages.dataset_data import Counted
from app.pages.dataset_lengths import histogram_html, longest_html, quality_html, scripts_html, untrained_html
from app.pages.dataset_links import to
from app.pages.dataset_parts import place, progress_html, rows_html, trouble_html
from app.pages.dataset_tokens import tokens_html
from app.pages.dataset_view import MEASURED, View
from app.pages.parts import panel
from training.formats import UNKNOWN
from worker.measuring import Measurement
from worker.models import Dataset


def body(view: View, item: Dataset) -> tuple[Markup, bool]:
    """The tab that the view names, and whether it waits for tokens that are being counted."""
    if view.tab == "columns":
        return _columns(view, item), False
    if view.tab not in MEASURED:
        return rows_html(item), False
    if item.shape == UNKNOWN and not item.columns_map:
        return _unmapped(view), False
    counted = dataset_data.counted(item, view)
    if not isinstance(counted, Counted):
        return _uncounted(counted), counted.status != "failed"
    return {"tokens": _tokens, "lengths": _lengths, "batches": _batches}[view.tab](view, counted), False


def _columns(view: View, item: Dataset) -> Markup:
    mapping, kind = dataset_data.mapping_of(view, item), dataset_data.kind_shown(view, item)
    seen, mine = dataset_data.seen(item, mapping, kind), callers.current().may_change(item.owner)
    return columns_html(mapping, kind, paths(item.sample), seen, view, item.columns_map, mine=mine)


def _unmapped(view: View) -> Markup:
    told = Markup(
        '<p class="note">No known format fits, so nothing can be counted yet. {} which column is the prompt, which the answer.</p>'
    )
    return panel("Which column is what?", told.format(to(view, "Say", tab="columns")))


def _tokens(view: View, counted: Counted) -> Markup:
    return tokens_html(dataset_data.tokens(counted, view), view, dataset_data.stops(counted, view))


def _lengths(view: View, counted: Counted) -> Markup:
    report, curve = counted.report(view), dataset_data.curve_of(counted, view)
    losses = [curve.at(limit) for limit in dataset_data.usual_stops(counted.store)]
    cells = [
        ("whole", histogram_html(curve, view, report["tokens"])),
        ("half stack", untrained_html(losses, view) + quality_html(dataset_data.quality(counted, view), view)),
        ("half stack", longest_html(report["longest_rows"], view) + scripts_html(report["scripts"])),
    ]
    return _grid(cells)


def _batches(view: View, counted: Counted) -> Markup:
    report = counted.report(view)
    batches = batches_html(report["worst_batches"], view)
    return _grid(
        [("two-thirds", batches), ("third", waste_html(report["padding_waste"], report["packing_waste"], view))]
    )


def _grid(cells: list[tuple[str, Markup]]) -> Markup:
    shown = Markup("").join(Markup('<div class="{}">{}</div>').format(*cell) for cell in cells if cell[1])
    return Markup('<div class="columns">{}</div>').format(shown)


def _uncounted(found: Measurement) -> Markup:
    if found.status == "failed" and found.problem:
        problem = found.problem
        told = trouble_html(
            "The tokens could not be counted.", f"{place(problem)} {problem['message']}", problem["fix"]
        )
        return told + Markup(
            """<p><button type="button" class="button" data-send='{"again": true}'>Try again</button></p>"""
        )
    return progress_html(found.done, found.total)
