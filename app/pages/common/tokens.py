"""Tokens of a row as HTML, colored by whether they carry loss. Pure functions."""

from collections.abc import Sequence
from typing import Protocol

from markupsafe import Markup

_CONTINUED = "⋯"  # shown for a token that holds only the first bytes of a character
_VISIBLE = str.maketrans({" ": "·", "\t": "→\t", "\n": "⏎\n", "\r": "␍", "\u00a0": "⍽"})


class Token(Protocol):
    """A token of a row. `cut`: beyond the maximum length; `trained`: it carries loss."""

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


def legend(tokens: Sequence[Token]) -> Markup:
    """What the colors of these tokens mean."""
    kinds = [("trained", "with loss", True), ("", "without loss", True)]
    kinds += [("special", "special token", any(token.special for token in tokens))]
    kinds += [("cut", "truncated", any(token.cut for token in tokens))]
    marks = [
        Markup('<span><i class="t {}">word</i> {}</span>').format(kind, label) for kind, label, used in kinds if used
    ]
    continued = (
        f", {_CONTINUED} character continued in the next token" if any(not token.text for token in tokens) else ""
    )
    signs = Markup('<span class="faint">· space, ⏎ line break, → tab{}</span>').format(continued)
    return Markup('<p class="legend">{}{}</p>').format(Markup("").join(marks), signs)


def token_html(place: int, token: Token, note: str = "") -> Markup:
    """A token at a place (from 0) of its row; `note` is added to its tooltip."""
    kinds = ("trained" if token.trained else "", "cut" if token.cut else "", "special" if token.special else "")
    classes = " ".join(["t", *filter(None, kinds)])
    return Markup('<i class="{}" title="token {} · id {}{}">{}</i>').format(
        classes, place + 1, token.id, note, visible(token.text)
    )


def visible(written: str) -> str:
    """A token's text with visible white space; other unprintable characters as their code point."""
    shown = written.translate(_VISIBLE)
    return (
        "".join(letter if letter.isprintable() or letter in "\n\t" else f"[U+{ord(letter):04X}]" for letter in shown)
        or _CONTINUED
    )
