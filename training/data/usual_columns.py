"""Columns with other names than those of a row format, whose meaning is certain all the same: they are read without a mapping."""

import re
from typing import Any

from training.data.example import Row

LANGUAGE = re.compile(r"[a-z]{2}(_[A-Z]{2})?")
_USUAL: tuple[tuple[str, dict[str, str]], ...] = (
    ("preference", {"prompt": "question", "chosen": "response_j", "rejected": "response_k"}),
    ("alpaca", {"instruction": "question", "input": "context", "output": "sql"}),
    ("alpaca", {"instruction": "question", "output": "sql"}),
)
_OWN = {"preference": ("chosen", "output"), "alpaca": ("output",), "source/target": ("source",)}


def usual_columns(row: Row) -> tuple[str, dict[str, str]] | None:
    """The format of a row, and the path in it of each role; None if its columns are not among those known."""
    for row_format, roles in _USUAL:
        if all(isinstance(row.get(column), str) for column in roles.values()):
            return row_format, roles
    codes = _languages(row.get("translation"))
    return ("source/target", dict(zip(("source", "target"), codes, strict=True))) if codes else None


def in_roles(row: Row, row_format: str) -> dict[str, str] | None:
    """The path of each role of a row of that format that has none of the format's own columns."""
    if row_format not in _OWN or any(name in row for name in _OWN[row_format]):
        return None
    usual = usual_columns(row)
    return usual[1] if usual and usual[0] == row_format else None


def _languages(value: Any) -> list[str]:
    """The paths of the two texts of a translation, under the codes of their languages."""
    texts = value if isinstance(value, dict) else {}
    codes = [
        f"translation.{code}" for code, text in texts.items() if LANGUAGE.fullmatch(code) and isinstance(text, str)
    ]
    return codes if len(codes) == len(texts) == 2 else []


USUAL_NAMES = {
    row_format: {column for known, roles in _USUAL if known == row_format for column in roles.values()}
    for row_format, _ in _USUAL
} | {"source/target": {"translation"}}
"""The columns that rows of a format may have in the place of its own."""
