"""The tab Lengths: the lengths of rows, and what each maximum length truncates, small enough to send once. Pure functions."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from app.pages.common.html import each, facts, note_html, panel, table
from app.pages.dataset.view import View, row_links, to
from app.words import numbers

_BARS = 64
_STOPS = 420

Lengths = NDArray[np.int32]


@dataclass(frozen=True)
class Curve:
    """A histogram of lengths on a logarithmic axis, and the exact losses at each of `stops` (maximum lengths in tokens)."""

    rows: int
    tokens: int
    edges: list[int]
    counts: list[int]
    stops: list[int]
    rows_cut: list[int]
    tokens_lost: list[int]
    untrained: list[int]

    def at(self, limit: int) -> "Loss":
        """The losses at one of the stops."""
        place = self.stops.index(limit)
        return Loss(limit, self.rows_cut[place], self.tokens_lost[place], self.untrained[place])

    def as_json(self) -> dict[str, Any]:
        """The values that static/histogram.js draws."""
        return vars(self)


@dataclass(frozen=True)
class Loss:
    """The rows and tokens that a maximum length of `limit` truncates, and the rows left with no loss tokens."""

    limit: int
    rows_cut: int
    tokens_lost: int
    untrained: int


def curve(lengths: Lengths, first_trained: Lengths, wanted: list[int]) -> Curve:
    """The curve for the tokens of each row (0: skipped) and each row's first token with loss (-1: none).

    The stops include the `wanted` ones and are spread evenly over the logarithmic axis.
    """
    usable = lengths > 0
    lengths, first_trained = lengths[usable], first_trained[usable]
    longest, shortest = (int(lengths.max()), int(lengths.min())) if len(lengths) else (1, 1)
    low, high = max(1, shortest // 2), max(longest, *wanted)
    stops = np.unique(np.concatenate([np.geomspace(low, high, _STOPS).round().astype(np.int64), wanted]))
    edges = np.unique(np.geomspace(shortest, longest + 1, _BARS + 1).round().astype(np.int64))
    if len(edges) < 2:
        edges = np.array([shortest, longest + 1])
    counts, _ = np.histogram(lengths, bins=edges)
    total = int(lengths.sum(dtype=np.int64))
    return Curve(
        len(lengths), total, edges.tolist(), counts.tolist(), stops.tolist(), *losses(stops, lengths, first_trained)
    )


def losses(
    stops: NDArray[np.int64], lengths: Lengths, first_trained: Lengths
) -> tuple[list[int], list[int], list[int]]:
    """Truncated rows, truncated tokens and rows with no loss tokens at each of the stops."""
    ordered = np.sort(lengths)
    beyond = np.concatenate([np.cumsum(ordered[::-1], dtype=np.int64)[::-1], [0]])  # tokens of the rows from here on
    place = np.searchsorted(ordered, stops, side="right")
    rows_cut = len(ordered) - place
    tokens_lost = beyond[place] - rows_cut * stops
    starts = np.sort(first_trained[first_trained >= 0])
    never = len(first_trained) - len(starts)
    untrained = len(starts) - np.searchsorted(starts, stops, side="left") + never
    return rows_cut.tolist(), tokens_lost.tolist(), untrained.tolist()


_EXAMPLES = 8


def summary_html(tokens: Mapping[str, float], rows: int) -> Markup:
    """The number of rows and their lengths in tokens."""
    named = (("Median", "median"), ("95th percentile", "p95"), ("Longest", "max"), ("All rows", "total"))
    pairs = [(label, f"{numbers.count(tokens.get(key))} tokens") for label, key in named]
    return facts([("Rows", numbers.count(rows)), *pairs])


def histogram_html(curve: Curve, view: View, tokens: Mapping[str, float]) -> Markup:
    """The histogram with a draggable maximum length, which static/histogram.js draws with its sentence."""
    losses = curve.at(view.max_length)
    data = json.dumps(curve.as_json(), separators=(",", ":"))
    body = Markup(
        '{}<figure class="histogram" data-curve="{}" data-limit="{}" tabindex="0" role="slider" '
        'aria-label="Maximum length in tokens" aria-valuemin="{}" aria-valuemax="{}" aria-valuenow="{}">'
        '</figure><p class="cost" aria-live="polite">{}</p>'
    ).format(
        summary_html(tokens, curve.rows),
        data,
        view.max_length,
        curve.stops[0],
        curve.stops[-1],
        view.max_length,
        cost(losses, curve),
    )
    hint = Markup('<span class="hint">Drag the line, or use the arrow keys. Point at a bar for its rows.</span>')
    return panel("Row lengths", body, classes="lengths", aside=hint)


def cost(loss: Loss, curve: Curve) -> Markup:
    """The rows and tokens that a maximum length truncates; static/histogram.js shows the same sentence while dragging."""
    if not loss.rows_cut and not loss.untrained:
        return Markup("<b>At {} tokens</b>, no row is truncated.").format(numbers.count(loss.limit))
    sentence = Markup("<b>At {} tokens</b>, {} of {} rows ({}) are truncated, losing {} of {} tokens ({}). ").format(
        numbers.count(loss.limit),
        numbers.count(loss.rows_cut),
        numbers.count(curve.rows),
        share(loss.rows_cut, curve.rows),
        numbers.count(loss.tokens_lost),
        numbers.count(curve.tokens),
        share(loss.tokens_lost, curve.tokens),
    )
    if not loss.untrained:
        return sentence + "Every row has tokens with loss."
    rows = "1 row has" if loss.untrained == 1 else f"{loss.untrained:,} rows have"
    return sentence + Markup('<b class="bad">{} no loss tokens.</b>').format(rows)


def share(part: float, whole: float) -> str:
    """A share in percent, never rounded to 0% or 100%."""
    if not whole or not part:
        return "0%"
    percent = 100 * part / whole
    if percent < 0.1:
        return "under 0.1%"
    return "over 99.9%" if part < whole and percent > 99.9 else f"{percent:.1f}%"


def untrained_html(losses: Sequence[Loss], view: View) -> Markup:
    """Truncated rows and rows with no loss tokens at common maximum lengths."""
    heads = Markup("<th>Maximum length</th><th>Truncated rows</th><th>Rows with no loss tokens</th>")
    lines = [
        (
            "now" if loss.limit == view.max_length else "",
            to(view, f"{loss.limit:,} tokens", max_length=loss.limit),
            numbers.count(loss.rows_cut),
            "" if not loss.untrained else "bad",
            numbers.count(loss.untrained),
        )
        for loss in losses
    ]
    body = each('<tr class="{}"><th>{}</th><td>{}</td><td class="{}">{}</td></tr>', lines)
    return panel("At other maximum lengths", table("figures", heads, body))


def longest_html(longest: Sequence[Mapping[str, int]], view: View) -> Markup:
    """The longest rows, with `row` from 1 and `tokens`, linked to the tab Tokens."""
    heads = Markup("<th>Row</th><th>Tokens</th><th>Truncated</th>")
    lines = [
        (
            row_links(view, [item["row"]]),
            numbers.count(item["tokens"]),
            numbers.count(max(item["tokens"] - view.max_length, 0)),
        )
        for item in longest
    ]
    return panel("Longest rows", table("figures", heads, each("<tr><th>{}</th><td>{}</td><td>{}</td></tr>", lines)))


def quality_html(report: Mapping[str, Any], view: View) -> Markup:
    """Duplicate rows, near-duplicate rows and rows without an answer."""
    kinds = (
        ("Duplicate rows", "duplicate", "="),
        ("Near-duplicate rows", "near_duplicate", "≈"),
        ("Rows without an answer (skipped)", "empty", ""),
    )
    parts = [
        _count(label, report.get(f"{kind}_rows"), report.get(f"{kind}_examples"), view, sign)
        for label, kind, sign in kinds
    ]
    return panel("Data quality", Markup('<table class="pairs wide">{}</table>').format(Markup("").join(parts)))


def scripts_html(scripts: Sequence[Mapping[str, Any]]) -> Markup:
    """The writing systems of the rows with their tokens per character; those that the tokenizer covers poorly are marked."""
    if not scripts:
        return Markup("")
    heads = Markup("<th>Writing system</th><th>Share of rows</th><th>Tokens per character</th>")
    all_rows = sum(script["rows"] for script in scripts)
    lines = [
        (
            script["script"],
            share(script["rows"], all_rows),
            "bad" if is_poorly_covered(script) else "",
            _tokens_per_character(script),
        )
        for script in scripts
    ]
    body = each('<tr><th>{}</th><td>{}</td><td class="{}">{}</td></tr>', lines)
    poor = ", ".join(str(script["script"]) for script in scripts if is_poorly_covered(script))
    sentence = (
        "This tokenizer covers {} poorly: it splits characters or lacks them, so rows are long and hard to learn."
    )
    note = note_html(sentence.format(poor)) if poor else ""
    return panel("Writing systems", table("figures", heads, body) + note)


def is_poorly_covered(script: Mapping[str, Any]) -> bool:
    """True if the tokenizer needs more than one token per character of the writing system, or has unknown tokens."""
    return bool(script["tokens_per_character"] > 1 or script["unknown_tokens"] > 0)


def _tokens_per_character(script: Mapping[str, Any]) -> str:
    unknown = f", {numbers.count(script['unknown_tokens'])} unknown" if script["unknown_tokens"] else ""
    return f"{script['tokens_per_character']:.2f}{unknown}"


def _count(label: str, count: Any, examples: Any, view: View, sign: str) -> Markup:
    if count is None:
        return Markup("")
    groups = [group if isinstance(group, (list, tuple)) else [group] for group in (examples or [])[:_EXAMPLES]]
    shown = [Markup(" {} ").format(sign).join(row_links(view, [row]) for row in group) for group in groups]
    listed = (
        Markup(' <span class="faint">e.g. row {}</span>').format(Markup(", ").join(shown)) if shown and count else ""
    )
    return Markup("<tr><th>{}</th><td><b>{}</b>{}</td></tr>").format(label, numbers.count(count), listed)
