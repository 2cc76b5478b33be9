"""A paired comparison in words, the same on pages, in commands and in model cards. Pure."""

from math import floor, log10

from training.scoring.paired import SMALL_DIFFERENCE, Paired, Verdict


def in_words(found: Paired, *, share: bool = True) -> str:
    """For example "better by 5.0 points (95% interval +2.1 to +7.9, 500 rows)".

    Without a difference: "no difference shown at 160 rows (95% interval -1.9 to +4.4 points); about 1,200 would show 2 points".
    Scores that are no share of 1 (`share` is False) have no points.
    """
    if not share:
        return _in_numbers(found)
    span = f"95% interval {_signed(found.low)} to {_signed(found.high)}"
    if found.verdict is not Verdict.NONE:
        return f"{found.verdict.value} by {points(abs(found.difference))} points ({span}, {_rows(found.rows)})"
    shown = f"{found.verdict.value} at {_rows(found.rows)}"
    if found.rows_needed is None:
        return f"{shown}: the scores of all rows are equal ({span} points)"
    shown += f" ({span} points)"
    if found.rows_needed <= found.rows:
        return shown
    return f"{shown}; about {_rounded(found.rows_needed):,} would show {points(SMALL_DIFFERENCE, 0)} points"


def _in_numbers(found: Paired) -> str:
    span = f"95% interval {found.low:+.4g} to {found.high:+.4g}"
    if found.verdict is Verdict.NONE:
        return f"{found.verdict.value} at {_rows(found.rows)} ({span})"
    return f"{found.verdict.value} by {abs(found.difference):.4g} ({span}, {_rows(found.rows)})"


def points(share: float, decimals: int = 1) -> str:
    """A difference of scores from 0 to 1 in points, which are percentage points."""
    return f"{100 * share:.{decimals}f}"


def _signed(share: float) -> str:
    return f"{100 * share + 0.0:+.1f}"


def _rows(number: int) -> str:
    return f"{number:,} row{'' if number == 1 else 's'}"


def _rounded(number: int) -> int:
    """The number with two significant digits."""
    unit: int = 10 ** max(0, floor(log10(number)) - 1)
    return round(number / unit) * unit
