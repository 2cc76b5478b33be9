"""REST routes of a run's log, events and samples, in parts and as server-sent events, and of runs imported from archives."""

import json
from collections.abc import AsyncIterator, Iterable
from typing import Annotated, Any

import anyio
from fastapi import Header, Query, Request
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from app.access import callers
from app.documents import records
from app.documents.records import EventPart, LogPart
from app.documents.results import samples
from app.documents.results.samples import SamplePart
from app.documents.run import RunAnswer, document
from app.web.rest.openapi import raw_body
from app.web.rest.received import received
from app.web.rest.routing import MOST, After, JsonRouter, Limit, Offset, Reading, sends
from worker.archives import restore
from worker.archives.restore import BadArchive
from worker.store import database
from worker.store.log_search import Filter, Level
from worker.store.runs import RunNotFound
from worker.store.samples import Order, Wanted

router = JsonRouter()

ARCHIVES = "/api/archives"
MOST_LINES = 100_000

POLL_SECONDS = 1.0
_QUIET_POLLS = 15
"""Polls without news after which a comment is sent, so that proxies keep the connection."""


@router.get("/api/runs/{run_id}/log")
def show_log(
    run_id: str,
    after: After = 0,
    limit: Annotated[int, Query(ge=1, le=MOST_LINES)] = 1000,
    last: Annotated[bool, Query(description="The last lines instead of the first ones after `after`.")] = False,
    level: Annotated[Level | None, Query(description="warning: only warnings and errors; error: only errors.")] = None,
    rank: Annotated[int | None, Query(ge=0, le=10**6, description="Only lines of this rank.")] = None,
    search: Annotated[str, Query(max_length=200, description="Only lines with this text; case is ignored.")] = "",
) -> LogPart:
    """The lines that the training process printed, oldest first. Send `next` as `after` to read on; `ended` tells whether
    more can come. With a filter, lines have level and rank, and `more` tells whether lines after `next` were not searched yet.
    """
    wanted = Filter(level, rank, search)
    if wanted == Filter():
        return records.log(run_id, after=after, limit=limit, last=last)
    return records.search_log(run_id, wanted, after=after, limit=limit, last=last)


@router.get("/api/runs/{run_id}/events")
def show_events(run_id: str, after: After = 0, limit: Annotated[int, Query(ge=1, le=MOST_LINES)] = 500) -> EventPart:
    """The events of a run, oldest first: phases, checkpoints, warnings, errors. Send `next` as `after` to read on."""
    return records.events(run_id, after=after, limit=limit)


@router.get("/api/runs/{run_id}/samples")
def show_samples(
    session: Reading,
    run_id: str,
    step: Annotated[
        int | None, Query(ge=0, lt=2**31, description="Of this step. Default: all, the last first.")
    ] = None,
    search: Annotated[
        str, Query(max_length=200, description="Prompts with this text, in any case, there or in a sample.")
    ] = "",
    cut_off: Annotated[bool, Query(description="Only prompts with a sample that was cut off.")] = False,
    equal: Annotated[bool, Query(description="Only prompts whose samples all have the same reward.")] = False,
    order: Annotated[Order, Query(description="lowest, highest: by the mean of a reward.")] = "drawn",
    reward: Annotated[str, Query(max_length=200, description="Reward of the order. Default: the total.")] = "",
    offset: Offset = 0,
    limit: Limit = 100,
) -> SamplePart:
    """The samples that a run of task grpo or distill drew, by prompt, each with its scores: rewards, or what the teacher says."""
    wanted = Wanted(step, search, cut_off, equal, order, reward)
    return samples.part(session, run_id, wanted, offset=offset, limit=limit)


@router.post(
    ARCHIVES,
    status_code=201,
    openapi_extra=raw_body("application/octet-stream", "A file of `lathe archive`."),
)
async def import_run(request: Request) -> RunAnswer:
    """Imports a run from the archive in the body; it belongs to the caller."""
    caller = callers.current()
    async with received(request, "archive.lathe.zip", caller.name) as files:
        try:
            run = await run_in_threadpool(restore.restore, files.paths[0], owner=caller.name, allowed=caller.allowed)
        except BadArchive as error:
            raise BadArchive("body", None, error.message, error.fix) from None
    with database.read() as session:
        return document(session, run.id)


@router.get("/api/runs/{run_id}/stream", **sends("text/event-stream", "Messages until the run has ended."))
def stream_run(
    request: Request,
    run_id: str,
    after: Annotated[
        str, Query(max_length=80, description="Id of the last message received. Default: from the start.")
    ] = "",
    last_event_id: Annotated[
        str, Header(max_length=80, description="As `after`; browsers send it when they reconnect.")
    ] = "",
) -> StreamingResponse:
    """A run's log lines and events as they come, as server-sent events named `log`, `event` and, at the end, `end`."""
    events, lines = _position(last_event_id or after)
    records.events(run_id, limit=1)  # an unknown run is a 404, not an empty stream
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    messages = _messages(request, run_id, events, lines)
    return StreamingResponse(messages, media_type="text/event-stream", headers=headers)


async def _messages(request: Request, run_id: str, events: int, lines: int) -> AsyncIterator[str]:
    """Messages until the run has ended and all is read, the caller does not see it any more, or the client or the server leaves."""
    quiet = 0
    while not await request.is_disconnected() and not request.app.state.leaving.is_set():
        try:
            found = await run_in_threadpool(records.events, run_id, after=events)
            printed = await run_in_threadpool(records.log, run_id, after=lines)
        except RunNotFound:
            return
        for event in found.events:
            events = event.id
            yield _message("event", event.model_dump(mode="json"), (events, lines))
        for line in printed.lines:
            lines = line.id
            yield _message("log", line.model_dump(mode="json", exclude_unset=True), (events, lines))
        if found.events or printed.lines:
            quiet = 0
            continue
        if found.ended:  # read before the lines: nothing can have come since
            yield _message("end", {"status": found.status}, (events, lines))
            return
        quiet += 1
        if quiet % _QUIET_POLLS == 0:
            yield ": waiting\n\n"
        await anyio.sleep(POLL_SECONDS)


def _message(name: str, data: dict[str, Any], position: Iterable[int]) -> str:
    return f"id: {'-'.join(map(str, position))}\nevent: {name}\ndata: {json.dumps(data)}\n\n"


def _position(text: str) -> tuple[int, int]:
    """The last event and log line that the client has, from a message's id; the start for anything else."""
    events, _, lines = text.partition("-")
    if not (events.isdecimal() and lines.isdecimal()):
        return 0, 0
    return min(int(events[:20]), MOST), min(int(lines[:20]), MOST)
