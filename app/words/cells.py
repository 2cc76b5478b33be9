"""Texts of people as cells of tables that other programs read. Pure."""

from typing import Any

_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet would compute a cell that begins so


def csv_cell(value: Any) -> Any:
    """A value for CSV: text that a spreadsheet would compute gets an apostrophe before it, and a boolean is true or false."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return value
