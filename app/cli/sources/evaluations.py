"""Evaluations, from the local database or the server."""

from typing import Any
from urllib.parse import quote

from app.cli.options import ready
from app.cli.sources.server import chosen, run_path


def submit(run_id: str, data: str, values: dict[str, Any]) -> dict[str, Any]:
    """Queues an evaluation and returns it. A data file of this machine is sent to the server first.

    Raises:
        RunNotFound, ConfigError, ServerError: it is refused; nothing is queued.
    """
    if server := chosen():
        from app.cli.sources.data_files import sent_file

        body = values | {"data": sent_file(server, data) if data else ""}
        return dict(server.send("POST", run_path(run_id, "/evaluations"), json=body))
    from app.documents.results.evaluations import document
    from worker.evaluations import submit
    from worker.settings import get_settings

    ready()
    get_settings().make_folders()
    return document(submit.submit(run_id, values, data=data))


def of_run(run_id: str) -> list[dict[str, Any]]:
    """The evaluations of a run, newest first.

    Raises:
        RunNotFound, ServerError: no run has this id.
    """
    if server := chosen():
        return list(server.get(run_path(run_id, "/evaluations"))["evaluations"])
    from app.documents.results.evaluations import listing
    from worker.store import database

    ready()
    with database.read() as session:
        return listing(session, run_id)


def document(evaluation_id: str) -> dict[str, Any]:
    """One evaluation.

    Raises:
        EvaluationNotFound, ServerError: none has this id.
    """
    if server := chosen():
        return dict(server.get(f"/api/evaluations/{quote(evaluation_id, safe='')}"))
    from app.documents.results.evaluations import show
    from worker.store import database

    with database.read() as session:
        return show(session, evaluation_id)
