"""The token view: a row as the model gets it, token by token. Pure functions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from markupsafe import Markup

from app import text
from app.pages.dataset_links import field, to
from app.pages.dataset_view import View
from app.pages.parts import facts, panel

_HEAD, _AROUND = 1500, 150  # tokens shown from the start of a long row, and around its cut and its end
_GOES_ON = "⋯"  # a character that the next token ends
_VISIBLE = str.maketrans({" ": "·", "\t": "→\t", "\n": "⏎\n", "\r": "␍", "\u00a0": "⍽"})


class Token(Protocol):
    """What is shown of a token. `cut`: beyond the maximum length; `trained`: it carries loss."""

    @property
    def id(self) -> int: ...
    @property
    def text(self) -> str: ...
    @property
    def trained(self) -> bool: ...
    @property
    def cut(self) -> bool: ...
    @property
    def special(self) -> bool: ...


@dataclass(frozen=True)
class Stops:
    """Rows that a person may jump to, from 1; None where there is none."""

    rows: int
    longest: int | None = None
    most_truncated: int | None = None
    untrained: int | None = None


def tokens_html(tokens: Sequence[Token], view: View, stops: Stops) -> Markup:
    """The row's counts, its tokens and what their colours mean."""
    heading, aside = f"Row {view.row:,} of {stops.rows:,}", _moves(view, stops)
    if not tokens:
        left_out = Markup(
            '<p class="advice-line"><b>This row is left out.</b> It has no answer, so there is nothing to learn from it.</p>'
        )
        return panel(heading, left_out, classes="token-view", aside=aside)
    shown = Markup('<div class="tokens" tabindex="0">{}</div>').format(_runs(tokens))
    return panel(heading, _counts(tokens, view) + _legend(tokens) + shown, classes="token-view", aside=aside)


def _moves(view: View, stops: Stops) -> Markup:
    """Links to other rows; those that lead nowhere are shown and do nothing."""
    wanted = (
        ("previous", "← Previous", view.row - 1 or None),
        ("next", "Next →", view.row + 1 if view.row < stops.rows else None),
        ("longest", "Longest", stops.longest),
        ("truncated", "Most cut off", stops.most_truncated),
        ("untrained", "Teaches nothing", stops.untrained),
    )
    moves = [
        Markup('<span class="button small off">{}</span>').format(label)
        if row is None
        else to(view, label, key=f"go-{key}", classes="button small", row=row)
        for key, label, row in wanted
    ]
    chance = Markup(
        """<button type="button" class="button small" id="go-random" data-send='{"random": true}'>Random</button>"""
    )
    box = field("row", "Go to row", view.row, size=7)
    return Markup('<div class="moves">{}{}{}</div>').format(Markup("").join(moves), chance, box)


def _counts(tokens: Sequence[Token], view: View) -> Markup:
    trained = sum(token.trained and not token.cut for token in tokens)
    cut = sum(token.cut for token in tokens)
    lost = sum(token.trained and token.cut for token in tokens)
    told = facts(
        [
            ("Tokens", text.count(len(tokens))),
            ("Carry loss", text.count(trained)),
            ("Cut off", text.count(cut)),
            ("Cut off that would carry loss", text.count(lost)),
            ("Special", text.count(sum(token.special for token in tokens))),
        ]
    )
    if trained:
        return told
    if lost:
        longer = text.plural(next(place for place, token in enumerate(tokens, 1) if token.trained), "token")
        why = f"Its answer begins after the cut. A maximum length of more than {longer} would reach it."
    else:
        why = "It has no answer that loss could be computed on."
    template = Markup('{}<p class="advice-line"><b>This row teaches nothing at {} tokens.</b> {}</p>')
    return template.format(told, text.count(view.max_length), why)


def _legend(tokens: Sequence[Token]) -> Markup:
    kinds = [("trained", "carries loss", True), ("", "read only", True)]
    kinds += [("special", "special token", any(token.special for token in tokens))]
    kinds += [("cut", "cut off", any(token.cut for token in tokens))]
    marks = [
        Markup('<span><i class="t {}">word</i> {}</span>').format(kind, label) for kind, label, there in kinds if there
    ]
    goes_on = f", {_GOES_ON} the character goes on in the next token" if any(not token.text for token in tokens) else ""
    signs = Markup('<span class="faint">· space, ⏎ line break, → tab{}</span>').format(goes_on)
    return Markup('<p class="legend">{}{}</p>').format(Markup("").join(marks), signs)


def _runs(tokens: Sequence[Token]) -> Markup:
    """All tokens of a row; of a very long one its beginning, what is around the cut, and its end."""
    parts: list[Markup] = []
    shown_to = 0
    for start, end in _shown(tokens):
        if start > shown_to:
            parts.append(_skipped(start - shown_to))
        parts += [_token(place, tokens[place]) for place in range(start, end)]
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
    return Markup('<span class="skipped">… {} not shown …</span>').format(text.plural(count, "token"))


def _token(place: int, token: Token) -> Markup:
    kinds = ("trained" if token.trained else "", "cut" if token.cut else "", "special" if token.special else "")
    classes = " ".join(["t", *filter(None, kinds)])
    return Markup('<i class="{}" title="token {} · id {}">{}</i>').format(
        classes, place + 1, token.id, visible(token.text)
    )


def visible(written: str) -> str:
    """A token's text with white space made visible; other characters that show nothing as their code."""
    shown = written.translate(_VISIBLE)
    return (
        "".join(letter if letter.isprintable() or letter in "\n\t" else f"[U+{ord(letter):04X}]" for letter in shown)
        or _GOES_ON
    )
