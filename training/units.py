"""Formats and reads sizes in bytes, and formats durations and signals, for pages, commands, messages and records."""

import math
import re
import signal
from decimal import Decimal

NONE = "-"
"""Shown in place of a missing number."""

_BYTES = {"b": 1} | {
    f"{letter}{end}": base**power
    for power, letter in enumerate("kmgtp", 1)
    for end, base in (("", 1000), ("b", 1000), ("ib", 1024))
}


def byte_size(size: float | None) -> str:
    """Bytes in binary units: "812 bytes", "1.5 GiB", "512 MiB"."""
    if size is None:
        return NONE
    value, unit = float(size), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if abs(value) < 1024:
            break
        value, unit = value / 1024, larger
    if unit == "bytes":
        return f"{value:.0f} {'byte' if value == 1 else 'bytes'}"
    return f"{value:.0f} {unit}" if value >= 100 else f"{value:.1f} {unit}"


def parse_size(text: str) -> int:
    """Bytes from a text such as "200GB" (1000**3 each), "1.5 TiB" (1024**4 each) or "500000 B".

    Raises:
        ValueError: it is not a size.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]+)", text.strip().lower(), re.ASCII)
    if match is None or match[2] not in _BYTES:
        raise ValueError(text)
    return int(Decimal(match[1]) * _BYTES[match[2]])


def decimal(number: float | None, places: int = 4) -> str:
    """A metric such as a loss, rounded to `places`: "0.1234"; with
    an exponent from a million on and below 10^-places: "1.2e-06"."""
    if number is None or not math.isfinite(number):
        return NONE
    return f"{number:.{places}f}" if number == 0 or 10**-places <= abs(number) < 1e6 else f"{number:.1e}"


def duration(seconds: float | None) -> str:
    """Seconds in at most two units: "0.4 s", "12 s", "2 min 5 s", "3 h 12 min", "2 d 4 h"."""
    if seconds is None or not math.isfinite(seconds):
        return NONE
    if seconds < 1:
        return f"{max(seconds, 0):.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def signal_name(number: int) -> str:
    """The name of a signal, such as SIGKILL; real-time signals have none: "signal 40"."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
