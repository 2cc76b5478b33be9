"""Suggests a column mapping by what the columns hold, for rows whose columns have no usual names."""

from collections.abc import Sequence
from statistics import fmean

from training.data.example import Row
from training.data.mapping import write_mapping
from training.data.suggested_mapping import fits, have_choices, suggest

_LEAST_CHARACTERS = 12.0
"""The mean length from which a column counts as a text, and not as a name, a number or a date."""
_LEAST_LETTERS = 0.5
"""The share of letters and spaces from which a value is words."""


def suggest_by_any(rows: Sequence[Row]) -> str | None:
    """The mapping that the names of the columns suggest, else the one that their contents do."""
    return suggest(rows) or suggest_by_content(rows)


def suggest_by_content(rows: Sequence[Row]) -> str | None:
    """The two columns with the longest texts as prompt and answer, in the order of the file; a single one as text.

    A text is several words in most rows, not the same in all of them.
    """
    if have_choices(rows):
        return None
    names = list(dict.fromkeys(name for row in rows for name in row))
    lengths = {name: length for name in names if (length := _text_length([row.get(name) for row in rows]))}
    longest = sorted(lengths, key=lambda name: -lengths[name])[:2]
    texts = [name for name in names if name in longest]
    mapping = dict(zip(("prompt", "completion") if len(texts) > 1 else ("text",), texts, strict=False))
    return write_mapping(mapping) if mapping and fits(mapping, rows, set(mapping)) else None


def _text_length(values: Sequence[object]) -> float:
    """The mean length of a column's texts; 0 if it holds something else."""
    texts = [value.strip() for value in values if isinstance(value, str) and value.strip()]
    if not texts or any(not isinstance(value, str | None) for value in values):
        return 0.0
    if sum(map(_is_words, texts)) * 2 <= len(texts) or (len(texts) > 1 and len(set(texts)) == 1):
        return 0.0
    length = fmean(map(len, texts))
    return length if length >= _LEAST_CHARACTERS else 0.0


def _is_words(text: str) -> bool:
    """True if a text is mostly letters, and has several words or is in a script without spaces."""
    letters = sum(sign.isalpha() or sign.isspace() for sign in text)
    return letters >= _LEAST_LETTERS * len(text) and (" " in text or not text.isascii())
