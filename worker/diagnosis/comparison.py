"""Compares a failed run with one that finished: which log lines are new, and which settings differ. Needs no database.

Lines are compared by their template: the line without what changes from run to run, such as numbers, paths and quoted texts. The
usual library for templates, drain3, requires versions of two packages from 2021, which other packages exclude.
"""

import re
from collections.abc import Iterable
from typing import Any

from training.redaction import ESCAPES
from worker.diagnosis.log_text import LONGEST_LINE

MOST_LINES = 12
_VARIABLE = re.compile(
    r"'[^']*'|\"[^\"]*\"|(?:[\w.~-]*/)[\w./~-]+|\b0x[0-9a-fA-F]+\b|\b[0-9a-f]{8,}\b|\d+(?:[.:,-]\d+)*(?:e[+-]?\d+)?"
)
_NOISE = re.compile(r"\d+%\||^\s*\{'|it/s|s/it|^\s*$|^[\W\d]*$")
_OWN = ("name", "push_to_hub", "memory_limit")  # settings that do not change how a run trains


def template(line: str) -> str:
    """The line without numbers, paths, hashes and quoted texts."""
    return " ".join(_VARIABLE.sub("#", ESCAPES.sub("", line[:LONGEST_LINE])).split())


def new_lines(failed: Iterable[str], finished: Iterable[str]) -> list[str]:
    """The lines of the failed run whose template the finished run's log does not have: the first of each, at most `MOST_LINES`.

    Progress bars and metrics are left out.
    """
    seen = {template(line) for line in finished}
    new: list[str] = []
    for line in failed:
        if len(new) == MOST_LINES:
            break
        if not _NOISE.search(line) and (mask := template(line)) not in seen:
            seen.add(mask)
            new.append(line.strip())
    return new


def different_settings(failed: dict[str, Any], finished: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """For each setting with another value: the finished run's value and the failed run's."""
    names = [name for name in failed if name not in _OWN]
    return {name: (finished.get(name), failed[name]) for name in names if finished.get(name) != failed[name]}
