"""REST routes that read a run's log and events, and import a run from its archive."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool

from app.access import callers
from app.documents import log_search, records
from app.documents.log_search import Filter, Level
from app.documents.run import document
from app.web.rest.data.received import received
from app.web.rest.openapi import raw_body
from app.web.rest.routing import After, answers
from app.web.rest.run_answers import EventPart, LogPart, RunAnswer
from worker.runs import restore
from worker.runs.restore import BadArchive
from worker.store import database

router = APIRouter()

ARCHIVES = "/api/archives"
MOST_LINES = 10_000


@router.get("/api/runs/{run_id}/log", **answers(LogPart))
def show_log(
    run_id: str,
    after: After = 0,
    limit: Annotated[int, Query(ge=1, le=MOST_LINES)] = 1000,
    last: Annotated[bool, Query(description="The last lines instead of the first ones after `after`.")] = False,
    level: Annotated[Level | None, Query(description="warning: only warnings and errors; error: only errors.")] = None,
    rank: Annotated[int | None, Query(ge=0, le=10**6, description="Only lines of this rank.")] = None,
    search: Annotated[str, Query(max_length=200, description="Only lines with this text; case is ignored.")] = "",
) -> dict[str, Any]:
    """The lines that the training process printed, oldest first. Send `next` as `after` to read on; `ended` tells whether
    more can come. With a filter, lines have level and rank, and `more` tells whether lines after `next` were not searched yet.
    """
    wanted = Filter(level, rank, search)
    if wanted == Filter():
        return records.log(run_id, after=after, limit=limit, last=last)
    return log_search.log(run_id, wanted, after=after, limit=limit, last=last)


@router.get("/api/runs/{run_id}/events", **answers(EventPart))
def show_events(
    run_id: str, after: After = 0, limit: Annotated[int, Query(ge=1, le=MOST_LINES)] = 500
) -> dict[str, Any]:
    """The events of a run, oldest first: phases, checkpoints, warnings, errors. Send `next` as `after` to read on."""
    return records.events(run_id, after=after, limit=limit)


@router.post(
    ARCHIVES,
    status_code=201,
    openapi_extra=raw_body("application/octet-stream", "A file of `lathe archive`."),
    **answers(RunAnswer, 201),
)
async def import_run(request: Request) -> dict[str, Any]:
    """Imports a run from the archive in the body; it belongs to the caller.

    Raises:
        BadArchive: it is not the archive of a run; answered with 422.
    """
    owner = callers.current().name
    async with received(request, "archive.lathe.zip", owner) as files:
        try:
            run = await run_in_threadpool(restore.restore, files.paths[0], owner=owner)
        except BadArchive as error:
            raise BadArchive("body", None, error.message, error.fix) from None
    with database.read() as session:
        return document(session, run.id)
