"""A run's log, also filtered, and its events in parts. Read-only."""

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from app.documents import Document, columns
from app.documents.run import EventAnswer
from worker.store import database, history, log_search, runs
from worker.store.log_search import Filter
from worker.store.tables import LogLine, Status


@columns(LogLine, ("attempt", "time", "text"))
class LogLineAnswer(Document):
    """A line that the training process printed. `level` and `rank` are in the answers to filtered requests."""

    id: int
    level: Literal["info", "warning", "error"] | None = None
    rank: int | None = None


class NumberedEvent(EventAnswer):
    """An event with its id, by which lists are read on."""

    id: int


class _Part(Document):
    next: int = Field(description="send it as `after` to read on")
    status: Status
    ended: bool = Field(description="true if the run has ended, so that nothing more can come")


class LogPart(_Part):
    """Lines of a log, oldest first. `more`, of filtered requests: lines after `next` were not searched yet."""

    lines: list[LogLineAnswer]
    more: bool = False


class EventPart(_Part):
    """Events of a run, oldest first."""

    events: list[NumberedEvent]


def log(run_id: str, *, after: int = 0, limit: int = 1000, last: bool = False) -> LogPart:
    """The first lines after the id `after`, or the `last` ones. Raises RunNotFound if no run has this id."""
    with database.read() as session:
        run = runs.get(session=session, run_id=run_id)  # before the lines: an ended run prints nothing more
        read = history.log_tail if last else history.log_head
        lines = [
            LogLineAnswer.model_validate(line)
            for line in read(session=session, run_id=run.id, after_id=after, limit=limit)
        ]
    return LogPart(lines=lines, **_end(lines, after, run.status))


def events(run_id: str, *, after: int = 0, limit: int = 500) -> EventPart:
    """The first events after the id `after`. Raises RunNotFound if no run has this id."""
    with database.read() as session:
        run = runs.get(session=session, run_id=run_id)
        following = history.following(session=session, run_id=run.id, after_id=after, limit=limit)
        listed = [NumberedEvent.model_validate(event) for event in following]
    return EventPart(events=listed, **_end(listed, after, run.status))


def _end(listed: Sequence[LogLineAnswer | NumberedEvent], after: int, status: Status) -> dict[str, Any]:
    return {"next": listed[-1].id if listed else after, "status": status, "ended": status.ended}


def search_log(run_id: str, wanted: Filter, *, after: int = 0, limit: int = 1000, last: bool = False) -> LogPart:
    """The first matching lines after the id `after`, or the `last` ones, each with `level` and `rank`.

    As `log`; `more` is true if lines were not searched: those after `next`, or, with `last`, earlier ones.

    Raises:
        RunNotFound: no run has this id.
    """
    with database.read() as session:
        run = runs.get(session=session, run_id=run_id)  # before the lines: an ended run prints nothing more
        read = log_search.last if last else log_search.first
        lines, following, more = read(session, run.id, wanted, after, limit)
    classified = [_classified_line(*line) for line in lines]
    return LogPart(lines=classified, next=following, status=run.status, ended=run.status.ended, more=more)


def _classified_line(line: LogLine, level: str, rank: int | None) -> LogLineAnswer:
    return LogLineAnswer.model_validate(line).model_copy(update={"level": level, "rank": rank})
