"""What the page Run draws and follows: /api/runs/ID/plots, /live and /log."""

import gzip
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.sse import EventSourceResponse
from starlette.responses import StreamingResponse

from app.documents.live import plots
from app.documents.live.plots import View
from app.documents.live.reader import Cursor
from app.web.downloads import slug
from app.web.rest.routing import After, sends
from app.web.streams.feeds import Feeds
from worker.store import database, logs, runs
from worker.store.tables import Run

_PAGE = 2000  # lines read at a time for a download

router = APIRouter(prefix="/api/runs/{run_id}")


def existing(run_id: str) -> Run:
    """The run in the address.

    Raises:
        RunNotFound: no run has this id.
    """
    with database.read() as session:
        return runs.get(session=session, run_id=run_id)


Existing = Annotated[Run, Depends(existing)]


@router.get("/plots", response_model=None, include_in_schema=False)
def show_plots(
    run_id: str,
    axis: Literal["step", "tokens", "epoch", "time"] = "step",
    start: Annotated[float | None, Query(alias="from", allow_inf_nan=False)] = None,
    end: Annotated[float | None, Query(alias="to", allow_inf_nan=False)] = None,
    points: Annotated[int, Query(ge=10, le=4000)] = 400,
    ranks: Annotated[list[int] | None, Query(max_length=64)] = None,
    accept_encoding: Annotated[str, Header()] = "",
) -> Response:
    """The run's plots from `from` to `to` on `axis`, in about `points` points of equal width (static/plots.js has the format)."""
    view = View(axis, start, end, points, tuple(sorted(set(ranks or ()))))
    body, headers = plots.packed(run_id, view), {"Vary": "Accept-Encoding", "Cache-Control": "no-store"}
    if "gzip" in accept_encoding:
        headers["Content-Encoding"] = "gzip"
    else:
        body = gzip.decompress(body)
    return Response(body, media_type="application/json", headers=headers)


@router.get("/live", response_model=None, include_in_schema=False)
async def follow(
    request: Request, run: Existing, since: str = "", last_event_id: Annotated[str, Header()] = ""
) -> Response:
    """What is new in the run, as server-sent events (app/documents/live/reader.py has the format), after the last event id.

    `since` is such an id, for a page that connects for the first time.
    """
    feeds: Feeds = request.app.state.feeds
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return EventSourceResponse(feeds.stream(run.id, Cursor.parse(last_event_id or since)), headers=headers)


@router.get("/log-window", include_in_schema=False)
def show_log(
    run: Existing,
    after: After = 0,
    before: After | None = None,
    find: Annotated[str, Query(max_length=200)] = "",
    limit: Annotated[int, Query(ge=1, le=5000)] = 500,
) -> dict[str, Any]:
    """The last `limit` lines between the ids `after` and `before`, as [id, attempt, text], oldest first.

    With `find`, the lines back to the last one that contains this text, whatever its case; none if no line does.
    """
    with database.read() as session:
        if find:
            found = logs.last_with(session=session, run_id=run.id, text=find, before_id=before)
            if found is None:
                return {"lines": []}
            after = max(after, found - 1)
        lines = logs.tail(session=session, run_id=run.id, after_id=after, before_id=before, limit=limit)
    return {"lines": [[line.id, line.attempt, line.text] for line in lines]}


@router.get("/log.txt", **sends("text/plain", "The log."))
def download_log(run: Existing) -> Response:
    """The whole log as a text file."""
    headers = {"Content-Disposition": f'attachment; filename="{slug(run.name)}-{run.id}.log"'}
    return StreamingResponse(_whole_log(run.id), media_type="text/plain; charset=utf-8", headers=headers)


def _whole_log(run_id: str) -> Iterator[str]:
    after = 0
    while True:
        with database.read() as session:
            lines = logs.head(session=session, run_id=run_id, after_id=after, limit=_PAGE)
            texts = [f"{line.text}\n" for line in lines]
            after = lines[-1].id or 0 if lines else 0
        if not texts:
            return
        yield "".join(texts)
