"""Numbers in text, exact, with the separators that people write: 1,234.5, 1.234,5, 1 234,5, 1'234, 1_234, 3/4, 1 1/2, 1½, 1e-3."""

import math
import re
import unicodedata
from collections.abc import Iterator
from fractions import Fraction

Number = Fraction | float
"""An exact number; an infinite float if it is too large to compute with, and NaN if it has no value, or one of two."""

_SPACES = " \u00a0\u2009\u202f"
_GROUPS = re.compile(f"[{_SPACES}'\u2019_]")
_MANTISSA = (
    rf"\d{{1,3}}(?P<separator>[{_SPACES}'\u2019_,.])\d{{3}}(?:(?P=separator)\d{{3}})*(?!\d)(?:[.,]\d+(?![.,]?\d))?"
    r"|\d{1,2}(?:,\d{2})+,\d{3}(?!\d)(?:\.\d+)?"  # lakh and crore
    r"|\d{1,4}(?:,\d{4})+(?!\d)"  # groups of ten thousand
    r"|(?<!\d[.,])\d+[.,]\d+(?![.,]?\d)|\d+|(?<![\w.])\.\d+"
)
_NUMBER = re.compile(
    r"(?P<sign>(?<![\w)\]}.])[-+])?"
    r"(?:(?<![\d/])(?:(?P<whole>\d{1,3}) )?(?P<numerator>\d+) ?/ ?(?P<denominator>\d+)(?![\d/]|[.,]\d)"
    rf"|(?P<mantissa>{_MANTISSA})(?:[eE](?P<exponent>[-+]?\d+)(?!\w))?)"
)
_MINUS = str.maketrans(
    {"\u2212": "-", "\uff0d": "-", "\uff0b": "+", "\uff0e": ".", "\uff0c": ",", "\u066b": ".", "\u066c": ","}
)
_IN_LATEX = re.compile(r"(?<=\d)(?:\{,\}|,\\!|\\,)(?=\d{3}(?!\d))")  # separators of groups: 1{,}234, 1,\!234, 1\,234
_VULGAR = re.compile(r"(?P<after>(?<=\d)[ \u00a0\u202f]?)?(?P<fraction>[\u00bc-\u00be\u2150-\u215e\u2189])")
_IN_DOUBT = re.compile(r"[1-9]\d{0,3},\d{4}")
_LONGEST, _LARGEST_EXPONENT = 400, 300  # digits


def numbers(text: str) -> Iterator[Number]:
    """Yields the numbers in a text, in their order. A hyphen after a word or a number is no sign, 28/11/2026 no fraction, and
    1 1/2 one and a half.

    5/0 has no value, and 1,2345 may be 12345 in groups of ten thousand or 1.2345 with a decimal comma: both are NaN.
    """
    for match in _NUMBER.finditer(_plain(text)):
        yield _value(match)


def last_number(text: str) -> Number | None:
    """The last number in a text; None without one."""
    return next(iter([*numbers(text)][::-1]), None)


def number_of(text: str) -> Number | None:
    """The number that a text consists of; None if it is something else."""
    match = _NUMBER.fullmatch(_plain(text.strip()))
    return _value(match) if match else None


def close(one: Number, other: Number, tolerance: float = 0.0) -> bool:
    """True if the numbers differ by at most `tolerance`. Infinite ones and NaN equal none."""
    if isinstance(one, float) or isinstance(other, float):
        return False
    return abs(one - other) <= Fraction(tolerance)


def _plain(text: str) -> str:
    """The text with ASCII digits, signs and separators."""
    text = _IN_LATEX.sub(",", text)
    if text.isascii():
        return text
    text = _VULGAR.sub(lambda match: " " * (match["after"] is not None) + _written(match["fraction"]), text)
    return "".join(str(int(letter)) if letter.isdecimal() else letter for letter in text.translate(_MINUS))


def _written(fraction: str) -> str:
    """A fraction that is one character, such as ½, as 1/2."""
    return unicodedata.normalize("NFKC", fraction).replace("\u2044", "/")


def _value(match: re.Match[str]) -> Number:
    sign = -1 if match["sign"] == "-" else 1
    if match["numerator"]:
        fraction = _fraction(match["numerator"], match["denominator"])
        return sign * (int(match["whole"]) + fraction if match["whole"] and fraction < 1 else fraction)
    exponent = match["exponent"] or "0"
    if len(match["mantissa"]) > _LONGEST or len(exponent) > 5 or abs(int(exponent)) > _LARGEST_EXPONENT:
        return sign * math.inf
    if _IN_DOUBT.fullmatch(match["mantissa"]):
        return math.nan
    return sign * Fraction(_decimal(match["mantissa"])) * Fraction(10) ** int(exponent)


def _fraction(numerator: str, denominator: str) -> Number:
    if max(len(numerator), len(denominator)) > _LONGEST:
        return math.inf
    return Fraction(int(numerator), int(denominator)) if int(denominator) else math.nan


def _decimal(mantissa: str) -> str:
    """The mantissa without separators of groups, and with a decimal point."""
    digits = _GROUPS.sub("", mantissa)
    if "," in digits and "." in digits:
        decimal, group = (",", ".") if digits.rindex(",") > digits.rindex(".") else (".", ",")
    elif "," in digits:
        whole, _, rest = digits.rpartition(",")
        # 1,5 and 0,125 have a decimal comma; 1,500 and 1,0000,0000 are groups.
        groups = "," in whole or (len(rest) == 3 and len(whole) <= 3 and not whole.startswith("0"))
        decimal, group = (".", ",") if groups else (",", ".")
    else:
        decimal, group = ("", ".") if digits.count(".") > 1 else (".", "")
    return (digits.replace(group, "") if group else digits).replace(decimal or ".", ".")
