"""A run's log and events as they come, as server-sent events."""

import json
from collections.abc import AsyncIterator, Iterable
from typing import Annotated, Any

import anyio
from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from app.documents import records
from app.web.rest.routing import MOST, sends

router = APIRouter()

POLL_SECONDS = 1.0
_QUIET_POLLS = 15
"""Polls without news after which a comment is sent, so that proxies keep the connection."""


@router.get("/api/runs/{run_id}/stream", **sends("text/event-stream", "Messages until the run has ended."))
def stream_run(
    request: Request,
    run_id: str,
    after: Annotated[str, Query(description="Id of the last message received. Default: from the start.")] = "",
    last_event_id: Annotated[str, Header(description="As `after`; browsers send it when they reconnect.")] = "",
) -> StreamingResponse:
    """A run's log lines and events as they come, as server-sent events named `log`, `event` and, at the end, `end`."""
    events, lines = _position(last_event_id or after)
    records.events(run_id, limit=1)  # an unknown run is a 404, not an empty stream
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    messages = _messages(request, run_id, events, lines)
    return StreamingResponse(messages, media_type="text/event-stream", headers=headers)


async def _messages(request: Request, run_id: str, events: int, lines: int) -> AsyncIterator[str]:
    """Messages until the run has ended and all is read, or the client or the server leaves."""
    quiet = 0
    while not await request.is_disconnected() and not request.app.state.leaving.is_set():
        found = await run_in_threadpool(records.events, run_id, after=events)
        printed = await run_in_threadpool(records.log, run_id, after=lines)
        for name, page in (("event", found["events"]), ("log", printed["lines"])):
            for entry in page:
                events, lines = (entry["id"], lines) if name == "event" else (events, entry["id"])
                yield _message(name, entry, (events, lines))
        if found["events"] or printed["lines"]:
            quiet = 0
            continue
        if found["ended"]:  # read before the lines: nothing can have come since
            yield _message("end", {"status": found["status"]}, (events, lines))
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
