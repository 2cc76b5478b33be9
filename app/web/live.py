"""What the page Run draws and follows: /api/runs/ID/plots, /live (one reader per watched run for all its viewers) and /log."""

import asyncio
import json
import logging
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.sse import EventSourceResponse, format_sse_event
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from app.documents.live import plots
from app.documents.live.plots import View
from app.documents.live.reader import Cursor, Reader
from app.texts import language
from app.web import compression
from app.web.rest.results import slug
from app.web.rest.routing import After, sends
from worker.store import database, history, runs, sight
from worker.store.database import UNREACHABLE
from worker.store.runs import RunNotFound
from worker.store.tables import Run, Status

SECONDS, SECONDS_AFTER_END = 1.0, 5.0
_PING = 15.0  # seconds without news
_KEPT = 60  # ticks that a page which connects again can still get
_RETRY = 2000  # milliseconds until a browser connects again


log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Viewer:
    """Where a page began, and the user to whose view its reading is limited; None: to nothing."""

    cursor: Cursor | None
    user: str | None


class Feed:
    """The ticks of one run. A task reads while there are viewers.

    It reads without the limit of a user's view, since its viewers are different users, and asks in each tick which of them still
    see the run.
    """

    def __init__(self, run_id: str, cursor: Cursor | None) -> None:
        self.reader = Reader(run_id, cursor)
        self.viewers: dict[asyncio.Queue[bytes], Viewer] = {}
        self._sent: deque[tuple[Cursor, Cursor, bytes]] = deque(maxlen=_KEPT)  # before, after, message
        self._began = False
        self._trouble = False

    def join(self, cursor: Cursor | None) -> "asyncio.Queue[bytes]":
        """A queue of messages: all facts, what was sent after `cursor`, and from now on every tick."""
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        self.viewers[queue] = Viewer(cursor, sight.user())
        if self._began:
            for message in self._welcome(cursor):
                queue.put_nowait(message)
        return queue

    async def read_until_alone(self) -> None:
        """Reads and sends once a second, as long as somebody watches."""
        while self.viewers:
            await self._tick()
            ended = Status(self.reader.facts.get("status", Status.RUNNING)).ended
            await asyncio.sleep(SECONDS_AFTER_END if ended else SECONDS)

    async def _tick(self) -> None:
        before = self.reader.cursor
        try:
            news = await run_in_threadpool(self._read)
            await self._dismiss_those_without_sight()
        except RunNotFound:
            self._dismiss(self.viewers)
            return
        except UNREACHABLE:
            self._in_trouble()
            return
        except Exception:
            log.exception("reading run %s for its page", self.reader.run_id)
            self.reader = Reader(self.reader.run_id, before)  # the old one may have read a part
            self._in_trouble()
            return
        if self._trouble:
            news["facts"] = self.reader.facts
        self._trouble = False
        after = self.reader.cursor
        assert after
        if news:
            message = encoded(news, after)
            self._sent.append((before or after, after, message))
            if self._began:
                self._send(message)
        if not self._began:  # what the first viewers get depends on where each of them began
            self._began = True
            for queue, viewer in self.viewers.items():
                for message in self._welcome(viewer.cursor):
                    queue.put_nowait(message)

    def _read(self) -> dict[str, Any]:
        with sight.everything():
            return self.reader.read()

    async def _dismiss_those_without_sight(self) -> None:
        """Ends the streams of users who do not see the run any more."""
        users = {viewer.user for viewer in self.viewers.values()} - {None}
        blind = await run_in_threadpool(_without_sight, self.reader.run_id, users) if users else set()
        self._dismiss([queue for queue, viewer in self.viewers.items() if viewer.user in blind])

    def _dismiss(self, queues: "Iterable[asyncio.Queue[bytes]]") -> None:
        for queue in list(queues):
            del self.viewers[queue]
            queue.put_nowait(_GONE)

    def _in_trouble(self) -> None:
        if not self._trouble:
            self._send(encoded({"unreachable": True}, None))
        self._trouble = True

    def _send(self, message: bytes) -> None:
        for queue in self.viewers:
            if queue.qsize() >= _KEPT:  # too slow a connection: drop its messages, and let it load everything again
                while not queue.empty():
                    queue.get_nowait()
                queue.put_nowait(encoded({"facts": self.reader.facts, "reload": True}, self.reader.cursor))
            else:
                queue.put_nowait(message)

    def _welcome(self, cursor: Cursor | None) -> list[bytes]:
        now = self.reader.cursor
        assert now
        facts = encoded({"facts": self.reader.facts}, now)
        if cursor is None:
            return [facts]
        if now.lacks(cursor):  # as after a run went back to an earlier step
            return [encoded({"facts": self.reader.facts, "reload": True}, now)]
        if not cursor.lacks(now):
            return [facts]
        missed = [sent for sent in self._sent if cursor.lacks(sent[1])]
        if not missed or cursor.lacks(missed[0][0]):
            return [encoded({"facts": self.reader.facts, "reload": True}, now)]
        return [*(message for _, _, message in missed), facts]


class Feeds:
    """The feeds of the watched runs of this process, one for each language of their viewers."""

    def __init__(self) -> None:
        self._feeds: dict[tuple[str, str], Feed] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def stream(self, run_id: str, cursor: Cursor | None) -> AsyncIterator[bytes]:
        """The messages for one viewer, with a ping now and then, as long as the run exists and its user sees it."""
        key = (run_id, language())
        feed = self._feeds.get(key)
        if feed is None:
            feed = self._feeds[key] = Feed(run_id, cursor)
            queue = feed.join(cursor)
            self._start(key, feed)
        else:
            queue = feed.join(cursor)
        try:
            yield format_sse_event(retry=_RETRY, comment="follows the run")
            while (message := await _next(queue)) is not _GONE:
                yield message
            yield message
        finally:
            feed.viewers.pop(queue, None)

    def _start(self, key: tuple[str, str], feed: Feed) -> None:
        async def read() -> None:
            try:
                await feed.read_until_alone()
            finally:
                if self._feeds.get(key) is feed:
                    del self._feeds[key]

        task = asyncio.create_task(read())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _next(queue: "asyncio.Queue[bytes]") -> bytes:
    try:
        return await asyncio.wait_for(queue.get(), _PING)
    except TimeoutError:
        return format_sse_event(comment="ping")


def _without_sight(run_id: str, users: Iterable[str | None]) -> set[str | None]:
    """Those of the users who do not see the run."""
    blind = set()
    for user in users:
        with sight.seen_by(user), database.read() as session:
            if not sight.visible(session, [run_id]):
                blind.add(user)
    return blind


def encoded(news: dict[str, Any], cursor: Cursor | None) -> bytes:
    """A message as a server-sent event; its id is the cursor after it."""
    text = json.dumps(news, separators=(",", ":"), ensure_ascii=False)
    return format_sse_event(data_str=text, id=str(cursor) if cursor else None)


_GONE = encoded({"gone": True}, None)
"""The last message of a stream."""


_PAGE = 2000  # lines read at a time for a download

router = APIRouter(prefix="/api/runs/{run_id}")


def existing(run_id: str) -> Run:
    """The run in the address. Raises RunNotFound if no run has this id."""
    with database.read() as session:
        return runs.get(session=session, run_id=run_id)


Existing = Annotated[Run, Depends(existing)]


@router.get("/plots", response_model=None, include_in_schema=False)
def show_plots(
    run_id: str,
    axis: plots.Axis = "step",
    start: Annotated[float | None, Query(alias="from", allow_inf_nan=False)] = None,
    end: Annotated[float | None, Query(alias="to", allow_inf_nan=False)] = None,
    points: Annotated[int, Query(ge=10, le=4000)] = 400,
    ranks: Annotated[list[int] | None, Query(max_length=64)] = None,
    accept_encoding: Annotated[str, Header()] = "",
) -> Response:
    """The run's plots from `from` to `to` on `axis`, in about `points` points of equal width (static/plots.js has the format)."""
    view = View(axis, start, end, points, tuple(sorted(set(ranks or ()))))
    body, headers = plots.packed(run_id, view), {"Cache-Control": "no-store"}
    return compression.response(body, accept_encoding, "application/json", headers)


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
    searched: After | None = None,
    limit: Annotated[int, Query(ge=1, le=5000)] = 500,
) -> dict[str, Any]:
    """The last `limit` lines between the ids `after` and `before`, as [id, attempt, text], oldest first.

    With `find`, the lines back to the last one that contains this text, whatever its case; none if no line does. A search reads
    only so many lines: `searched` of the answer, null at the beginning of the log, is the id before which the next one looks, given
    as `searched`.
    """
    with database.read() as session:
        if find:
            unsearched = min(filter(None, (before, searched)), default=None)
            found, rest = history.last_line_with(session=session, run_id=run.id, text=find, before_id=unsearched)
            if found is None:
                return {"lines": [], "searched": rest}
            after, searched = max(after, found - 1), found + 1
        lines = history.log_tail(session=session, run_id=run.id, after_id=after, before_id=before, limit=limit)
    return {"lines": [[line.id, line.attempt, line.text] for line in lines], "searched": searched}


@router.get("/log.txt", **sends("text/plain", "The log."))
def download_log(run: Existing) -> Response:
    """The whole log as a text file."""
    headers = {"Content-Disposition": f'attachment; filename="{slug(run.name)}-{run.id}.log"'}
    return StreamingResponse(_whole_log(run.id), media_type="text/plain; charset=utf-8", headers=headers)


def _whole_log(run_id: str) -> Iterator[str]:
    after = 0
    while True:
        with database.read() as session:
            lines = history.log_head(session=session, run_id=run_id, after_id=after, limit=_PAGE)
            texts = [f"{line.text}\n" for line in lines]
            after = lines[-1].id or 0 if lines else 0
        if not texts:
            return
        yield "".join(texts)
