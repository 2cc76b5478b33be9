"""Logs and events of runs, from the local database or the server."""

from typing import Any

from app.cli.options import ready
from app.cli.sources.server import chosen, run_path

_MOST_LINES = 10_000  # in one answer of the server


def tail(run_id: str, lines: int) -> dict[str, Any]:
    """The last lines of a log: `lines`, `next` for `following`, the run's `status`, and whether it has `ended`.

    Raises:
        RunNotFound, ServerError: no run has this id.
    """
    if server := chosen():
        return dict(server.get(run_path(run_id, "/log"), last=True, limit=min(lines, _MOST_LINES)))
    from app.documents import records

    ready()
    return records.log(run_id, limit=lines, last=True)


def following(run_id: str, after: int) -> dict[str, Any]:
    """The lines after `next` of an earlier answer, as `tail` gives them."""
    if server := chosen():
        return dict(server.get(run_path(run_id, "/log"), after=after))
    from app.documents import records

    return records.log(run_id, after=after)


def events(run_id: str, after: int) -> dict[str, Any]:
    """The events after `next` of an earlier answer: `events` and `next`."""
    if server := chosen():
        return dict(server.get(run_path(run_id, "/events"), after=after))
    from app.documents import records

    return records.events(run_id, after=after)
