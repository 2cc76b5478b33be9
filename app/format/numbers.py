"""Numbers as text: durations, counts with separators, shares, tables. Pure."""

import math
from datetime import datetime
from typing import Any

from app.texts import ngettext
from training import units
from training.units import NONE

_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet would compute a cell that begins so

duration, decimal = units.duration, units.decimal


def energy(joules: float | None) -> str:
    """Energy in kWh or Wh: "1.25 kWh", "38 Wh"."""
    if joules is None:
        return NONE
    hours = joules / 3600
    return f"{hours / 1000:,.2f} kWh" if hours >= 1000 else f"{hours:.3g} Wh"


def coarse(seconds: float) -> str:
    """A forecast of a time, rounded so that it is no countdown: "20 s", "40 min", "3 h", "2 d"."""
    for unit, word, step in ((86400, "d", 1), (3600, "h", 1), (60, "min", 1 if seconds < 600 else 5)):
        if seconds >= 2 * unit or (word == "min" and seconds >= 90):
            return f"{max(round(seconds / unit / step), 1) * step} {word}"
    return f"{max(round(seconds / 10), 1) * 10} s"


def count(number: float | None) -> str:
    """A whole number with separators: "1,234"."""
    return NONE if number is None or not math.isfinite(number) else f"{number:,.0f}"


def plural(number: int, one: str, many: str) -> str:
    """A number and its noun: "1 row", "1,234 rows"."""
    return f"{number:,} {ngettext(one, many, number)}"


def capitalized(text: str) -> str:
    """The text with a capital at its start."""
    return text[:1].upper() + text[1:]


def rate(number: float | None, unit: str) -> str:
    """A speed with its unit: "1,234 tokens/s"; one decimal below 100: "12.3 samples/s"."""
    if number is None or not math.isfinite(number):
        return NONE
    return f"{number:,.0f} {unit}/s" if number >= 100 else f"{number:.1f} {unit}/s"


def percent(share: float | None, places: int = 1) -> str:
    """A share of 1 as a percentage: 0.964 is "96.4%"."""
    return NONE if share is None or not math.isfinite(share) else f"{100 * share:.{places}f}%"


def when(epoch: float | None) -> str:
    """A time in the local time zone: "2026-03-01 14:05:09"."""
    return NONE if epoch is None else datetime.fromtimestamp(epoch).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def shorten(text: str, width: int) -> str:
    """`text` in at most `width` characters, with an ellipsis if it is shortened."""
    return text if len(text) <= width else text[: max(width - 1, 0)] + "…"


def bar(share: float, width: int) -> str:
    """A progress bar of `width` characters, filled to `share` (0 to 1)."""
    filled = round(min(max(share, 0.0), 1.0) * width)
    return "█" * filled + "░" * (width - filled)


def table(rows: list[list[str]], *, right: frozenset[int] = frozenset()) -> str:
    """Rows (the first is the heading) as aligned columns; columns in `right` are right-aligned."""
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = (f"{cell:{'>' if index in right else '<'}{widths[index]}}" for index, cell in enumerate(row))
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def pairs(items: list[tuple[str, str]], indent: int = 2) -> str:
    """Lines of labels and aligned values; a value of several lines stays in its column."""
    width = max((len(label) for label, _ in items), default=0) + 2
    gap = "\n" + " " * (indent + width)
    return "\n".join(" " * indent + label.ljust(width) + value.replace("\n", gap) for label, value in items)


def plain(value: Any) -> str:
    """A setting's value as in a configuration file: true, 0.0002, bf16."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def csv_cell(value: Any) -> Any:
    """A value for CSV: text that a spreadsheet would compute gets an apostrophe before it, and a boolean is true or false."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return value
