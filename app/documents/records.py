"""A run's log and events in parts, as REST gives them and the command line reads them. Read-only."""

from typing import Any

from app.documents.run import EVENT
from worker.store import database, history, logs, runs
from worker.store.tables import Status


def log(run_id: str, *, after: int = 0, limit: int = 1000, last: bool = False) -> dict[str, Any]:
    """The first lines after the id `after`, or the `last` ones: `lines`, `next`, `status`, `ended`.

    Raises:
        RunNotFound: no run has this id.
    """
    with database.read() as session:
        run = runs.get(session=session, run_id=run_id)  # before the lines: an ended run prints nothing more
        read = logs.tail if last else logs.head
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
