"""Texts of people as cells of tables that other programs read: CSV and Markdown. Pure."""

import re
from typing import Any

_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet would compute a cell that begins so


def csv_cell(value: Any) -> Any:
    """A value for CSV: text that a spreadsheet would compute gets an apostrophe before it, and a boolean is true or false."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return value


def markdown_cell(text: str) -> str:
    """Text as a cell of a Markdown table: one line, without markup."""
    return re.sub(r"([\\`*_{}\[\]<>|#~&])", r"\\\1", printable(text))


def printable(text: str) -> str:
    """The text in one line, without control characters and marks that change the direction of what follows."""
    return " ".join(_UNSAFE.sub(" ", text).split())
