"""The tab Tokens: one row, token by token. Pure functions."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from app.pages.common.html import facts, panel
from app.pages.common.tokens import Token, legend, token_html
from app.pages.dataset.view import View, field, to
from app.words import numbers

_HEAD, _AROUND = 1500, 150  # tokens shown at the start of a long row, and around its truncation point and its end


@dataclass(frozen=True)
class Stops:
    """Rows to jump to, from 1; None where there is none."""

    rows: int
    longest: int | None = None
    most_truncated: int | None = None
    untrained: int | None = None


def tokens_html(tokens: Sequence[Token], view: View, stops: Stops) -> Markup:
    """The row's counts, a legend of colors, and its tokens."""
    heading, aside = f"Row {view.row:,} of {stops.rows:,}", _moves(view, stops)
    if not tokens:
        skipped = Markup('<p class="advice-line"><b>This row is skipped.</b> It has no answer to learn.</p>')
        return panel(heading, skipped, classes="token-view", aside=aside)
    shown = Markup('<div class="tokens" tabindex="0">{}</div>').format(_runs(tokens))
    return panel(heading, _counts(tokens, view) + legend(tokens) + shown, classes="token-view", aside=aside)


def _moves(view: View, stops: Stops) -> Markup:
    """Links to other rows; a link without a target is disabled."""
    wanted = (
        ("previous", "← Previous", view.row - 1 or None),
        ("next", "Next →", view.row + 1 if view.row < stops.rows else None),
        ("longest", "Longest", stops.longest),
        ("truncated", "Most truncated", stops.most_truncated),
        ("untrained", "No loss tokens", stops.untrained),
    )
    moves = [
        Markup('<span class="button small off">{}</span>').format(label)
        if row is None
        else to(view, label, key=f"go-{key}", classes="button small", row=row)
        for key, label, row in wanted
    ]
    random_row = Markup(
        """<button type="button" class="button small" id="go-random" data-send='{"random": true}'>Random</button>"""
    )
    box = field("row", "Go to row", view.row, size=7)
    return Markup('<div class="moves">{}{}{}</div>').format(Markup("").join(moves), random_row, box)


def _counts(tokens: Sequence[Token], view: View) -> Markup:
    trained = sum(token.trained and not token.cut for token in tokens)
    cut = sum(token.cut for token in tokens)
    lost = sum(token.trained and token.cut for token in tokens)
    counts = facts(
        [
            ("Tokens", numbers.count(len(tokens))),
            ("With loss", numbers.count(trained)),
            ("Truncated", numbers.count(cut)),
            ("Truncated, with loss", numbers.count(lost)),
            ("Special", numbers.count(sum(token.special for token in tokens))),
        ]
    )
    if trained:
        return counts
    if lost:
        start = numbers.plural(next(place for place, token in enumerate(tokens, 1) if token.trained), "token")
        why = f"Its answer is truncated. Set max length to more than {start} to include it."
    else:
        why = "It has no answer to compute the loss on."
    template = Markup('{}<p class="advice-line"><b>This row has no loss tokens at {} tokens.</b> {}</p>')
    return template.format(counts, numbers.count(view.max_length), why)


def _runs(tokens: Sequence[Token]) -> Markup:
    """The tokens of a row; of a very long row its start, the truncation point and its end."""
    parts: list[Markup] = []
    shown_to = 0
    for start, end in _shown(tokens):
        if start > shown_to:
            parts.append(_skipped(start - shown_to))
        parts += [token_html(place, tokens[place]) for place in range(start, end)]
        shown_to = end
    return Markup("").join(parts)


def _shown(tokens: Sequence[Token]) -> list[tuple[int, int]]:
    total = len(tokens)
    if total <= _HEAD + 4 * _AROUND:
        return [(0, total)]
    cut = next((place for place, token in enumerate(tokens) if token.cut), 0)
    wanted = [(0, _HEAD), (cut - _AROUND, cut + _AROUND), (total - _AROUND, total)]
    spans: list[tuple[int, int]] = []
    for start, end in wanted:
        begin = max(start, spans[-1][1] if spans else 0)
        if end > begin:
            spans.append((begin, min(end, total)))
    return spans


def _skipped(count: int) -> Markup:
    return Markup('<span class="skipped">… {} not shown …</span>').format(numbers.plural(count, "token"))
