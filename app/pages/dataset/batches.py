"""The tab Batches: the longest batches of a run and the cost of padding. Pure functions."""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from app.pages.common.html import each, panel, table
from app.pages.dataset.view import View, row_links
from app.words import numbers

_ROWS_NAMED = 16


Batch = Mapping[str, Any]
"""A micro batch: `epoch` and `rank` from 0, `step` and `micro` from 1, `rows` from 1, the `longest` of them and all `tokens`,
padding included."""


def batches_html(batches: Sequence[Batch], view: View) -> Markup:
    """The longest batches, the longest first."""
    if not batches:
        return panel("Longest batches", Markup('<p class="note">The data set has no rows for a batch.</p>'))
    heads = Markup("").join(Markup("<th>{}</th>").format(head) for head in _heads(view))
    lines = [Markup("<tr>{}</tr>").format(_cells(batch, view)) for batch in batches]
    return panel("Longest batches", _lead(batches[0], view) + table("figures", heads, Markup("").join(lines)))


def waste_html(padding: float | None, packing: float | None, view: View) -> Markup:
    """The share of pad tokens with padding and with packing; shares from 0 to 1."""
    if padding is None or packing is None:
        return Markup("")
    bars = each(
        '<tr><th>{}</th><td><span class="split"><i style="width:{}%"></i></span></td><td>{}</td></tr>',
        [
            (label, f"{100 * (1 - waste):.1f}", f"{numbers.percent(waste)} pad tokens")
            for label, waste in _ways(padding, packing, view)
        ],
    )
    body = Markup('<p class="cost">{}</p><table class="pairs waste">{}</table>').format(
        _savings(padding, packing, view), bars
    )
    return panel("Padding and packing", body)


def _ways(padding: float, packing: float, view: View) -> list[tuple[str, float]]:
    return [
        (f"Padded, {numbers.plural(view.micro_batch_size, 'row')} per batch", padding),
        (f"Packed to {view.max_length:,} tokens", packing),
    ]


def _savings(padding: float, packing: float, view: View) -> Markup:
    if view.micro_batch_size == 1:
        return Markup("One row per batch needs no padding.")
    faster = (1 - packing) / (1 - padding) if padding < 1 else 1.0
    sentence = Markup(
        "With padding, <b>{}% of computed tokens are pad tokens</b>. Padding-free batches, the default, have none; packing to "
        "{} tokens leaves {}%"
    ).format(f"{100 * padding:.0f}", numbers.count(view.max_length), f"{100 * packing:.0f}")
    gain = f" and trains about {faster:.1f} times as many useful tokens per second." if faster >= 1.1 else "."
    return sentence + gain


def _lead(worst: Batch, view: View) -> Markup:
    processes = f" on rank {worst['rank']}" if view.num_processes > 1 else ""
    epoch = f" in epoch {worst['epoch'] + 1}" if view.epochs > 1 else ""
    return Markup('<p class="cost">Memory peaks at <b>step {}</b>{}{}, with {} tokens in the batch.</p>').format(
        f"{worst['step']:,}", epoch, processes, numbers.count(worst["tokens"])
    )


def _heads(view: View) -> list[str]:
    heads = ["Step", "Tokens", "Longest row", "Rows"]
    more = ["Epoch"] if view.epochs > 1 else []
    more += ["Rank"] if view.num_processes > 1 else []
    more += ["Micro batch"] if view.gradient_accumulation_steps > 1 else []
    return [heads[0], *more, *heads[1:]]


def _cells(batch: Batch, view: View) -> Markup:
    cells = [numbers.count(batch["step"])]
    cells += [numbers.count(batch["epoch"] + 1)] if view.epochs > 1 else []
    cells += [numbers.count(batch["rank"])] if view.num_processes > 1 else []
    cells += [numbers.count(batch["micro"])] if view.gradient_accumulation_steps > 1 else []
    cells += [numbers.count(batch["tokens"]), numbers.count(batch["longest"])]
    more = f" and {len(batch['rows']) - _ROWS_NAMED:,} more" if len(batch["rows"]) > _ROWS_NAMED else ""
    rows = Markup('<td class="rows">{}{}</td>').format(row_links(view, batch["rows"][:_ROWS_NAMED]), more)
    return each("<td>{}</td>", [(cell,) for cell in cells]) + rows
