"""The queue, of the local database or the server."""

from typing import Any

from app.cli.options import ready
from app.cli.sources.server import chosen, run_path


def document() -> dict[str, Any]:
    """The queue, as `lathe queue --json` prints it."""
    if server := chosen():
        return dict(server.get("/api/queue"))
    from app.documents import queue
    from worker.store import database

    ready()
    with database.read() as session:
        return queue.document(session)


def move(run_id: str, before: str | None) -> None:
    """Moves a queued run before another one, or to the end."""
    if server := chosen():
        server.send("POST", run_path(run_id, "/move"), json={"before": before})
        return
    from app.access import changes

    ready()
    changes.move(run_id, before)


def hold(run_id: str, *, held: bool) -> None:
    """Holds a queued run, or releases it."""
    if server := chosen():
        server.send("PATCH", run_path(run_id), json={"held": held})
        return
    from app.access import changes

    ready()
    changes.edit(run_id, held=held)


def set_priority(run_id: str, priority: str) -> None:
    """Sets the priority of a queued run: high, normal or low."""
    if server := chosen():
        server.send("PATCH", run_path(run_id), json={"priority": priority})
        return
    from app.access import changes
    from worker.store.waiting import PRIORITIES

    ready()
    changes.edit(run_id, priority=PRIORITIES[priority])


def pause(*, paused: bool) -> None:
    """Pauses the queue, or lets runs start again."""
    if server := chosen():
        server.send("POST", "/api/queue", json={"paused": paused})
        return
    from app.access import changes

    ready()
    changes.pause_queue(paused=paused)
