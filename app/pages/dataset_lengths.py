"""The page of lengths: how long the rows are, and what a maximum length costs. Pure functions."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from app import text
from app.pages.dataset_curve import Curve, Loss
from app.pages.dataset_links import row_links, to
from app.pages.dataset_view import View
from app.pages.parts import each, facts, panel, table

_EXAMPLES = 8


def summary_html(tokens: Mapping[str, float], rows: int) -> Markup:
    """The lengths in four numbers."""
    named = (("Median", "median"), ("95th percentile", "p95"), ("Longest", "max"), ("All rows", "total"))
    pairs = [(label, f"{text.count(tokens.get(key))} tokens") for label, key in named]
    return facts([("Rows", text.count(rows)), *pairs])


def histogram_html(curve: Curve, view: View, tokens: Mapping[str, float]) -> Markup:
    """The histogram with the cut-off that can be dragged; static/dataset.js draws it and keeps the sentence true."""
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
    hint = Markup('<span class="hint">Drag the line, or use the arrow keys.</span>')
    return panel("How long the rows are", body, classes="lengths", aside=hint)


def cost(loss: Loss, curve: Curve) -> Markup:
    """What a maximum length costs, as a sentence; static/dataset.js says the same while the line is dragged."""
    if not loss.rows_cut and not loss.untrained:
        return Markup("<b>At {} tokens</b> no row is cut off.").format(text.count(loss.limit))
    told = Markup("<b>At {} tokens</b> {} of {} rows ({}) are cut off, and {} of {} tokens ({}) are lost. ").format(
        text.count(loss.limit),
        text.count(loss.rows_cut),
        text.count(curve.rows),
        share(loss.rows_cut, curve.rows),
        text.count(loss.tokens_lost),
        text.count(curve.tokens),
        share(loss.tokens_lost, curve.tokens),
    )
    if not loss.untrained:
        return told + "Every row still teaches something."
    return told + Markup('<b class="bad">{} nothing.</b>').format(_teach(loss.untrained))


def share(part: float, whole: float) -> str:
    """A share in percent that is never rounded to nothing or to all."""
    if not whole or not part:
        return "0%"
    percent = 100 * part / whole
    if percent < 0.1:
        return "under 0.1%"
    return "over 99.9%" if part < whole and percent > 99.9 else f"{percent:.1f}%"


def untrained_html(losses: Sequence[Loss], view: View) -> Markup:
    """How many rows are cut off, and how many teach nothing, at the usual lengths."""
    heads = Markup("<th>Maximum length</th><th>Rows cut off</th><th>Rows that teach nothing</th>")
    lines = [
        (
            "now" if loss.limit == view.max_length else "",
            to(view, f"{loss.limit:,} tokens", max_length=loss.limit),
            text.count(loss.rows_cut),
            "" if not loss.untrained else "bad",
            text.count(loss.untrained),
        )
        for loss in losses
    ]
    body = each('<tr class="{}"><th>{}</th><td>{}</td><td class="{}">{}</td></tr>', lines)
    return panel("At other maximum lengths", table("figures", heads, body))


def longest_html(longest: Sequence[Mapping[str, int]], view: View) -> Markup:
    """The longest rows, each with `row` from 1 and `tokens`; each leads to its tokens."""
    heads = Markup("<th>Row</th><th>Tokens</th><th>Cut off</th>")
    lines = [
        (row_links(view, [one["row"]]), text.count(one["tokens"]), text.count(max(one["tokens"] - view.max_length, 0)))
        for one in longest
    ]
    return panel("Longest rows", table("figures", heads, each("<tr><th>{}</th><td>{}</td><td>{}</td></tr>", lines)))


def quality_html(report: Mapping[str, Any], view: View) -> Markup:
    """Rows that are there twice or nearly so, rows without an answer, and writing that the tokenizer breaks up."""
    told = (
        ("Rows that are exact copies of an earlier one", "duplicate", "="),
        ("Rows that nearly repeat another", "near_duplicate", "≈"),
        ("Rows without an answer, left out", "empty", ""),
    )
    parts = [
        _told(label, report.get(f"{kind}_rows"), report.get(f"{kind}_examples"), view, sign)
        for label, kind, sign in told
    ]
    return panel("Repeats and gaps", Markup('<table class="pairs wide">{}</table>').format(Markup("").join(parts)))


def scripts_html(scripts: Sequence[Mapping[str, Any]]) -> Markup:
    """Scripts with how many tokens a character takes; those that the tokenizer breaks badly are marked."""
    if not scripts:
        return Markup("")
    heads = Markup("<th>Script</th><th>Share of rows</th><th>Tokens a character</th>")
    lines = [
        (
            one["script"],
            share(one["rows"], sum(other["rows"] for other in scripts)),
            "bad" if badly(one) else "",
            _each(one),
        )
        for one in scripts
    ]
    body = each('<tr><th>{}</th><td>{}</td><td class="{}">{}</td></tr>', lines)
    broken = [str(one["script"]) for one in scripts if badly(one)]
    note = Markup("")
    if broken:
        told = "This tokenizer breaks {} into pieces smaller than a character, or lacks it: such rows are long and hard to learn."
        note = Markup('<p class="note">{}</p>').format(told.format(", ".join(broken)))
    return panel("Writing", table("figures", heads, body) + note)


def badly(script: Mapping[str, Any]) -> bool:
    """Whether the tokenizer takes more than a token for a character of that script, or has no token for it."""
    return bool(script["tokens_per_character"] > 1 or script["unknown_tokens"] > 0)


def _each(script: Mapping[str, Any]) -> str:
    unknown = f", {text.count(script['unknown_tokens'])} unknown" if script["unknown_tokens"] else ""
    return f"{script['tokens_per_character']:.2f}{unknown}"


def _teach(rows: int) -> str:
    return "1 row teaches" if rows == 1 else f"{rows:,} rows teach"


def _told(label: str, count: Any, examples: Any, view: View, sign: str) -> Markup:
    if count is None:
        return Markup("")
    groups = [group if isinstance(group, (list, tuple)) else [group] for group in (examples or [])[:_EXAMPLES]]
    shown = [Markup(" {} ").format(sign).join(row_links(view, [row]) for row in group) for group in groups]
    listed = (
        Markup(' <span class="faint">such as row {}</span>').format(Markup(", ").join(shown)) if shown and count else ""
    )
    return Markup("<tr><th>{}</th><td><b>{}</b>{}</td></tr>").format(label, text.count(count), listed)
