"""A run's log, also filtered by level, rank and text, and its events in parts, for REST and the command line. Read-only."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from sqlmodel import Session

from app.documents.run import EVENT
from worker.store import database, history, runs
from worker.store.tables import LogLine, Status

Level = Literal["warning", "error"]
SEARCHED = 200_000
"""Lines read for one answer at most."""
_PART = 5000
_BEFORE = 200  # lines read before a part, since the first of a part can be inside a traceback
# The same as in static/log.js, which a test compares with these.
RANK = r"^\[(?:rank|default)(\d+)\]:?\s?"
ERROR = r"\b(error|exception|traceback|critical|fatal)\b|\w+(Error|Exception)\b"
WARNING = r"\bwarn(ing)?\b|\w+Warning\b"
_rank = re.compile(RANK)
_error, _warning = re.compile(ERROR, re.IGNORECASE), re.compile(WARNING, re.IGNORECASE)


def log(run_id: str, *, after: int = 0, limit: int = 1000, last: bool = False) -> dict[str, Any]:
    """The first lines after the id `after`, or the `last` ones: `lines`, `next`, `status`, `ended`.

    Raises:
        RunNotFound: no run has this id.
    """
    with database.read() as session:
        run = runs.get(session=session, run_id=run_id)  # before the lines: an ended run prints nothing more
        read = history.log_tail if last else history.log_head
        lines = read(session=session, run_id=run.id, after_id=after, limit=limit)
        listed = [line.model_dump(mode="json", exclude={"run_id"}) for line in lines]
    return _page(listed, after, "lines", run.status)


def events(run_id: str, *, after: int = 0, limit: int = 500) -> dict[str, Any]:
    """The first events after the id `after`: `events`, `next`, `status`, `ended`.

    Raises:
        RunNotFound: no run has this id.
    """
    with database.read() as session:
        run = runs.get(session=session, run_id=run_id)
        found = history.following(session=session, run_id=run.id, after_id=after, limit=limit)
        listed = [event.model_dump(mode="json", include={"id", *EVENT}) for event in found]
    return _page(listed, after, "events", run.status)


def _page(listed: list[dict[str, Any]], after: int, name: str, status: Status) -> dict[str, Any]:
    last = listed[-1]["id"] if listed else after
    return {name: listed, "next": last, "status": status.value, "ended": status.ended}


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


def search_log(run_id: str, wanted: Filter, *, after: int = 0, limit: int = 1000, last: bool = False) -> dict[str, Any]:
    """The first matching lines after the id `after`, or the `last` ones, each with `level` and `rank`.

    As `log`; `more` is true if lines were not searched: those after `next`, or, with `last`, earlier ones.

    Raises:
        RunNotFound: no run has this id.
    """
    with database.read() as session:
        run = runs.get(session=session, run_id=run_id)  # before the lines: an ended run prints nothing more
        read = _last if last else _first
        lines, following, more = read(session, run.id, wanted, after, limit)
    page = {"lines": lines, "next": following, "status": run.status.value, "ended": run.status.ended}
    return page | {"more": more}


def classified(lines: Iterable[LogLine]) -> Iterator[tuple[LogLine, str, int | None]]:
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


def _first(session: Session, run_id: str, wanted: Filter, after: int, limit: int) -> tuple[list[Any], int, bool]:
    found: list[dict[str, Any]] = []
    for _ in range(SEARCHED // _PART):
        part = history.log_head(session=session, run_id=run_id, after_id=after, limit=_PART)
        for line, level, rank in _of_part(session, run_id, part):
            after = line.id or after
            if wanted.fits(level, rank, line.text):
                found.append(_classified_line(line, level, rank))
            if len(found) == limit:
                return found, after, True
        if len(part) < _PART:
            return found, after, False
    return found, after, True


def _last(session: Session, run_id: str, wanted: Filter, after: int, limit: int) -> tuple[list[Any], int, bool]:
    found: list[dict[str, Any]] = []
    before, end = None, after
    for _ in range(SEARCHED // _PART):
        part = history.log_tail(session=session, run_id=run_id, after_id=after, before_id=before, limit=_PART)
        end = max(end, part[-1].id or 0) if part else end
        lines = _of_part(session, run_id, part)
        found = [_classified_line(*line) for line in lines if wanted.fits(line[1], line[2], line[0].text)] + found
        if len(part) < _PART or len(found) >= limit:
            return found[-limit:], end, len(part) == _PART or len(found) > limit
        before = part[0].id
    return found, end, True


def _of_part(session: Session, run_id: str, part: list[LogLine]) -> list[tuple[LogLine, str, int | None]]:
    """The lines of a part, classified with the lines before it."""
    if not part:
        return []
    earlier = history.log_tail(session=session, run_id=run_id, before_id=part[0].id, limit=_BEFORE)
    return list(classified([*earlier, *part]))[len(earlier) :]


def _classified_line(line: LogLine, level: str, rank: int | None) -> dict[str, Any]:
    return line.model_dump(mode="json", exclude={"run_id"}) | {"level": level, "rank": rank}
