"""The lines of a run's log by level, rank and text."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from sqlmodel import Session

from worker.store import history
from worker.store.tables import LogLine

Level = Literal["warning", "error"]
Classified = tuple[LogLine, str, int | None]
"""A line with its level (info, warning or error) and its rank."""
Found = tuple[list[Classified], int, bool]
"""Matching lines, the id after which to read on, and whether there are lines that were not searched."""

SEARCHED = 200_000
"""Lines read for one answer at most."""
_PART = 2000  # of the longest lines, which history returns at once
_BEFORE = 200  # lines read before a part, since the first of a part can be inside a traceback
# The same as in static/log.js, which a test compares with these.
RANK = r"^\[(?:rank|default)(\d+)\]:?\s?"
ERROR = r"\b(error|exception|traceback|critical|fatal)\b|\w+(Error|Exception)\b"
WARNING = r"\bwarn(ing)?\b|\w+Warning\b"
_rank = re.compile(RANK)
_error, _warning = re.compile(ERROR, re.IGNORECASE), re.compile(WARNING, re.IGNORECASE)


@dataclass(frozen=True)
class Filter:
    """The lines wanted: of this level or worse, of this rank, with this text in any case. The default is all."""

    level: Level | None = None
    rank: int | None = None
    search: str = ""

    def fits(self, level: str, rank: int | None, text: str) -> bool:
        """True if a line is wanted."""
        enough = self.level is None or level in ("error", self.level)
        return enough and self.rank in (None, rank) and self.search.casefold() in text.casefold()


def classified(lines: Iterable[LogLine]) -> Iterator[Classified]:
    """Each line with its level (info, warning or error) and its rank. The lines of a traceback are errors."""
    inside = False
    for line in lines:
        found = _rank.match(line.text)
        bare = line.text[found.end() :] if found else line.text
        before, inside = (
            inside,
            bare.startswith("Traceback (most recent") or (inside and (not bare or bare[0].isspace())),
        )
        error = before or inside or _error.search(bare)
        level = "error" if error else "warning" if _warning.search(bare) else "info"
        yield line, level, int(found[1]) if found else None


def first(session: Session, run_id: str, wanted: Filter, after: int, limit: int) -> Found:
    """The first matching lines after the id `after`."""
    found: list[Classified] = []
    for _ in range(SEARCHED // _PART):
        part = history.log_head(session=session, run_id=run_id, after_id=after, limit=_PART)
        for line, level, rank in _of_part(session, run_id, part):
            after = line.id or after
            if wanted.fits(level, rank, line.text):
                found.append((line, level, rank))
            if len(found) == limit:
                return found, after, True
        if len(part) < _PART:
            return found, after, False
    return found, after, True


def last(session: Session, run_id: str, wanted: Filter, after: int, limit: int) -> Found:
    """The last matching lines after the id `after`."""
    found: list[Classified] = []
    before, end = None, after
    for _ in range(SEARCHED // _PART):
        part = history.log_tail(session=session, run_id=run_id, after_id=after, before_id=before, limit=_PART)
        end = max(end, part[-1].id or 0) if part else end
        lines = _of_part(session, run_id, part)
        found = [line for line in lines if wanted.fits(line[1], line[2], line[0].text)] + found
        if len(part) < _PART or len(found) >= limit:
            return found[-limit:], end, len(part) == _PART or len(found) > limit
        before = part[0].id
    return found, end, True


def _of_part(session: Session, run_id: str, part: list[LogLine]) -> list[Classified]:
    """The lines of a part, classified with the lines before it."""
    if not part:
        return []
    earlier = history.log_tail(session=session, run_id=run_id, before_id=part[0].id, limit=_BEFORE)
    return list(classified([*earlier, *part]))[len(earlier) :]
