"""The page of batches: where in a run the longest ones come, and what padding costs. Pure functions."""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from app import text
from app.pages.dataset_links import row_links
from app.pages.dataset_view import View
from app.pages.parts import each, panel, table

_ROWS_NAMED = 16


Batch = Mapping[str, Any]
"""A micro batch: `epoch` and `rank` from 0, `step` and `micro` from 1, `rows` from 1, the `longest` of them and all `tokens`,
padding included."""


def batches_html(batches: Sequence[Batch], view: View) -> Markup:
    """The longest batches, the longest first."""
    if not batches:
        return panel("The longest batches", Markup('<p class="note">There are no rows to make a batch of.</p>'))
    heads = Markup("").join(Markup("<th>{}</th>").format(head) for head in _heads(view))
    lines = [Markup("<tr>{}</tr>").format(_cells(batch, view)) for batch in batches]
    return panel("The longest batches", _lead(batches[0], view) + table("figures", heads, Markup("").join(lines)))


def waste_html(padding: float | None, packing: float | None, view: View) -> Markup:
    """What share of the computed tokens is filler, padded as the run would and packed instead; shares from 0 to 1."""
    if padding is None or packing is None:
        return Markup("")
    bars = each(
        '<tr><th>{}</th><td><span class="split"><i style="width:{}%"></i></span></td><td>{}</td></tr>',
        [
            (label, f"{100 * (1 - waste):.1f}", f"{text.percent(waste)} filler")
            for label, waste in _ways(padding, packing, view)
        ],
    )
    body = Markup('<p class="cost">{}</p><table class="pairs waste">{}</table>').format(
        _told(padding, packing, view), bars
    )
    return panel("Padding and packing", body)


def _ways(padding: float, packing: float, view: View) -> list[tuple[str, float]]:
    return [
        (f"Padded, {text.plural(view.micro_batch_size, 'row')} a batch", padding),
        (f"Packed to {view.max_length:,} tokens", packing),
    ]


def _told(padding: float, packing: float, view: View) -> Markup:
    if view.micro_batch_size == 1:
        return Markup("With one row a batch nothing is padded.")
    faster = (1 - packing) / (1 - padding) if padding < 1 else 1.0
    told = Markup(
        "Padded rows are filled up to the longest of a batch: <b>{} of every 100 tokens computed are filler</b>. Runs lay rows end "
        "to end by default, without any; packing them to {} tokens would leave {}"
    ).format(f"{100 * padding:.0f}", text.count(view.max_length), f"{100 * packing:.0f}")
    gain = f", for about {faster:.1f} times as many useful tokens a second." if faster >= 1.1 else "."
    return told + gain


def _lead(worst: Batch, view: View) -> Markup:
    processes = f" on rank {worst['rank']}" if view.num_processes > 1 else ""
    epoch = f" in epoch {worst['epoch'] + 1}" if view.epochs > 1 else ""
    return Markup(
        '<p class="cost">Memory peaks at <b>step {}</b>{}{}: {} tokens at once. '
        "If a run with these settings runs out of memory, it is there.</p>"
    ).format(f"{worst['step']:,}", epoch, processes, text.count(worst["tokens"]))


def _heads(view: View) -> list[str]:
    heads = ["Step", "Tokens", "Longest row", "Rows"]
    more = ["Epoch"] if view.epochs > 1 else []
    more += ["Rank"] if view.num_processes > 1 else []
    more += ["Micro batch"] if view.gradient_accumulation_steps > 1 else []
    return [heads[0], *more, *heads[1:]]


def _cells(batch: Batch, view: View) -> Markup:
    cells = [text.count(batch["step"])]
    cells += [text.count(batch["epoch"] + 1)] if view.epochs > 1 else []
    cells += [text.count(batch["rank"])] if view.num_processes > 1 else []
    cells += [text.count(batch["micro"])] if view.gradient_accumulation_steps > 1 else []
    cells += [text.count(batch["tokens"]), text.count(batch["longest"])]
    more = f" and {len(batch['rows']) - _ROWS_NAMED:,} more" if len(batch["rows"]) > _ROWS_NAMED else ""
    rows = Markup('<td class="rows">{}{}</td>').format(row_links(view, batch["rows"][:_ROWS_NAMED]), more)
    return each("<td>{}</td>", [(cell,) for cell in cells]) + rows
