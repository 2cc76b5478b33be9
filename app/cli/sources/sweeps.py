"""Sweeps, of the local database or the server."""

from typing import Any
from urllib.parse import quote

from app.cli.options import ready
from app.cli.sources.server import Server, chosen
from worker.sweeps.spec import SweepSpec

_SECONDS = 600.0  # a plan of 200 runs on a busy server


def plan(spec: SweepSpec) -> dict[str, Any]:
    """The plan of a sweep. Data files of this machine are sent to the server first.

    Raises:
        ConfigError, ServerError: the sweep is invalid.
    """
    if server := chosen():
        return dict(server.send("POST", "/api/sweeps/plan", json=_sent(server, spec), seconds=_SECONDS))
    from worker.sweeps import plan

    _ready()
    return plan.as_document(plan.make_plan(spec))


def start(spec: SweepSpec) -> dict[str, Any]:
    """Queues the runs of a sweep and returns it. Data files of this machine are sent to the server first.

    Raises:
        ConfigError, ServerError: the sweep is invalid; nothing is queued.
    """
    if server := chosen():
        return server.submit("/api/sweeps", _sent(server, spec), seconds=_SECONDS)
    from app.access import changes

    _ready()
    return document(changes.start_sweep(spec))


def listing(limit: int) -> list[dict[str, Any]]:
    """The sweeps, newest first."""
    if server := chosen():
        return list(server.get("/api/sweeps", limit=min(limit, 200))["sweeps"])
    from app.documents.sweep import brief
    from worker.store import database, sweeps

    ready()
    with database.read() as session:
        return [brief(session, sweep) for sweep in sweeps.listing(session=session, limit=limit)]


def document(sweep_id: str) -> dict[str, Any]:
    """A sweep with its trials.

    Raises:
        SweepNotFound, ServerError: no sweep has this id.
    """
    if server := chosen():
        return dict(server.get(_path(sweep_id)))
    from app.documents import sweep
    from worker.store import database

    ready()
    with database.read() as session:
        return sweep.document(session, sweep_id)


def stop(sweep_id: str) -> dict[str, Any]:
    """Requests all runs of a sweep to stop, and returns it.

    Raises:
        SweepNotFound, SweepEnded, ServerError: it does not exist, or has ended.
    """
    if server := chosen():
        return dict(server.send("POST", _path(sweep_id, "/stop")))
    from app.access import changes

    ready()
    changes.stop_sweep(sweep_id)
    return document(sweep_id)


def delete(sweep_id: str) -> None:
    """Deletes a sweep with its runs.

    Raises:
        SweepNotFound, SweepActive, ServerError: it does not exist, or a run is queued or running.
    """
    if server := chosen():
        server.send("DELETE", _path(sweep_id))
        return
    from app.access import changes

    ready()
    changes.delete_sweep(sweep_id)


def _ready() -> None:
    from worker.settings import get_settings

    ready()
    get_settings().make_folders()


def _path(sweep_id: str, rest: str = "") -> str:
    return f"/api/sweeps/{quote(sweep_id, safe='')}{rest}"


def _sent(server: Server, spec: SweepSpec) -> dict[str, Any]:
    """The sweep with the ids of data sets on the server in place of this machine's files, which are sent."""
    from app.cli.sources.data_files import sent_values

    values = spec.model_dump(mode="json", exclude_unset=True)
    return values | {"config": sent_values(server, values["config"])}
