"""The uvicorn server: it ends the endless responses of open pages when it stops, and limits the requests at a time."""

import asyncio
import re
from collections import Counter
from types import FrameType

import uvicorn
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.access import callers
from app.web.authentication import OPEN_PATHS
from app.web.security import error

_ENDLESS = re.compile(r"/gradio_api/(heartbeat/|queue/data).*|/api/runs/[^/]+/live")


def _is_endless(scope: Scope) -> bool:
    return scope["type"] == "http" and bool(_ENDLESS.fullmatch(scope["path"]))


class Streams:
    """Ends endless responses, once `leaving` is set, as if their client had disconnected."""

    def __init__(self, app: ASGIApp, leaving: asyncio.Event) -> None:
        self.app, self.leaving = app, leaving

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, self._until_leaving(receive) if _is_endless(scope) else receive, send)

    def _until_leaving(self, receive: Receive) -> Receive:
        async def either() -> Message:
            message = asyncio.ensure_future(receive())
            stopping = asyncio.ensure_future(self.leaving.wait())
            try:
                await asyncio.wait((message, stopping), return_when=asyncio.FIRST_COMPLETED)
                return message.result() if message.done() else {"type": "http.disconnect"}
            finally:
                message.cancel()
                stopping.cancel()

        return either


class RequestLimits:
    """Refuses requests beyond `most` at a time.

    One caller has at most half as many endless responses of open pages, and a quarter as many other requests.
    """

    def __init__(self, app: ASGIApp, most: int) -> None:
        self.app, self.most = app, most
        self.open: Counter[tuple[str, bool]] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            return await self.app(scope, receive, send)
        endless = _is_endless(scope)
        kind = callers.current().name, endless
        if self.open[kind] >= max(self.most // (2 if endless else 4), 1):
            fix = "Close some of your pages." if endless else "Wait for the answers to some of your requests."
            return await too_many(429, fix)(scope, receive, send)
        if self.open.total() >= self.most:
            return await too_many(503, "Try again in a moment, or raise LATHE_CONNECTIONS.")(scope, receive, send)
        self.open[kind] += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self.open[kind] -= 1
            self.open += Counter()  # drops counts of 0


def too_many(status: int, fix: str) -> JSONResponse:
    """The response to a request beyond a limit."""
    answer = error(status, "requests", None, "are too many at a time.", fix)
    answer.headers["Retry-After"] = "5"
    return answer


class Server(uvicorn.Server):
    """uvicorn's server, which sets `leaving` on a signal to stop."""

    def __init__(self, config: uvicorn.Config, leaving: asyncio.Event) -> None:
        super().__init__(config)
        self._leaving = leaving
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)  # type: ignore[arg-type]

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._leaving.set)
