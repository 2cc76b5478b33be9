"""Runs, from the local database or the server: what commands show, and the changes they make."""

from typing import Any

from app.cli.options import ready
from app.cli.sources.server import Server, chosen, run_path
from training.config.choices import Strategy
from training.config.run_config import RunConfig

_PAGE = 1000


def listing(status: str | None, search: str, limit: int) -> list[dict[str, Any]]:
    """The runs that match, as `lathe runs --json` prints them."""
    if server := chosen():
        return pages(server, "/api/runs", "runs", limit, status=status, search=search)
    from app.documents.run import brief
    from worker.store import database
    from worker.store.listed import run_list
    from worker.store.tables import Status

    ready()
    wanted = Status(status) if status else None
    with database.read() as session:
        return [brief(run) for run in run_list.listing(session=session, status=wanted, search=search, limit=limit)]


def document(run_id: str) -> dict[str, Any]:
    """One run, as `lathe show --json` prints it.

    Raises:
        RunNotFound, ServerError: no run has this id.
    """
    if server := chosen():
        return dict(server.get(run_path(run_id)))
    from app.documents import run
    from worker.store import database

    ready()
    with database.read() as session:
        return run.document(session, run_id)


def submit(config: RunConfig) -> dict[str, Any]:
    """Queues a run and returns it. Data files of this machine are sent to the server first.

    Raises:
        ConfigError, ServerError: settings are invalid; nothing is queued.
    """
    if server := chosen():
        from app.cli.sources.data_files import sent

        return server.submit("/api/runs", sent(server, config).model_dump(mode="json", exclude_unset=True))
    from worker.runs import submit
    from worker.settings import get_settings

    ready()
    get_settings().make_folders()  # they can be missing here if the database is on another machine
    return document(submit.submit(config).id)


def stop(run_id: str) -> dict[str, Any]:
    """Requests a run to stop, and returns it.

    Raises:
        RunNotFound, NotRunning, ServerError: it does not exist, or has ended.
    """
    if server := chosen():
        return dict(server.send("POST", run_path(run_id, "/stop")))
    from app.access import changes

    ready()
    changes.stop(run_id)
    return document(run_id)


def resume(
    run_id: str, *, step_down: bool, num_processes: int | None = None, strategy: str | None = None
) -> dict[str, Any]:
    """Requeues a run, and returns it.

    Raises:
        RunNotFound, NotResumable, ServerError: it cannot be resumed.
    """
    if server := chosen():
        asked = {"step_down": step_down, "num_processes": num_processes, "strategy": strategy}
        given = {name: value for name, value in asked.items() if value is not None}
        return dict(server.send("POST", run_path(run_id, "/resume"), params=given))
    from app.access import changes

    ready()
    changes.resume(
        run_id, step_down=step_down, strategy=Strategy(strategy) if strategy else None, num_processes=num_processes
    )
    return document(run_id)


def edit(
    run_id: str, values: dict[str, Any], add_tags: tuple[str, ...] = (), remove_tags: tuple[str, ...] = ()
) -> None:
    """Changes a run: `values` are name, notes, pinned, archived, held and priority (a word); None leaves one as it is."""
    if server := chosen():
        tags = {"add_tags": add_tags, "remove_tags": remove_tags}
        server.send("PATCH", run_path(run_id), json=values | tags)
        return
    from app.access import changes
    from worker.store.waiting import PRIORITIES

    ready()
    if "priority" in values:
        values = values | {"priority": PRIORITIES[values["priority"]]}
    changes.edit(run_id, **values, add_tags=add_tags, remove_tags=remove_tags)


def delete(run_id: str) -> None:
    """Deletes an ended run."""
    if server := chosen():
        server.send("DELETE", run_path(run_id))
        return
    from app.access import changes

    changes.delete(run_id)


def pages(server: Server, path: str, name: str, limit: int, **params: Any) -> list[dict[str, Any]]:
    """The first `limit` entries of a list of the server, which answers at most 1,000 at once."""
    found: list[dict[str, Any]] = []
    while len(found) < limit:
        wanted = min(limit - len(found), _PAGE)
        page = server.get(path, limit=wanted, offset=len(found), **params)[name]
        found += page
        if len(page) < wanted:
            break
    return found
