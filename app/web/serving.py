"""Middleware: ends the endless responses of open pages when the server stops, and limits how many requests run or start at once."""

import asyncio
import re
from collections import Counter

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.access import callers
from app.web.authentication import OPEN_PATHS
from app.web.security import error

_IN_A_TURN = 8  # requests; each takes a millisecond until it waits for something

_ENDLESS = re.compile(r"/gradio_api/(heartbeat/|queue/data).*|/api/runs/[^/]+/live|/api/pages/.*")


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


class Turns:
    """Starts a few requests in each turn of the event loop, so that /healthz does not wait for hundreds that arrive with it."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._started = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            while self._started >= _IN_A_TURN:
                await asyncio.sleep(0)
            if not self._started:
                asyncio.get_running_loop().call_soon(self._begin)
            self._started += 1
        await self.app(scope, receive, send)

    def _begin(self) -> None:
        self._started = 0


def too_many(status: int, fix: str) -> JSONResponse:
    """The response to a request beyond a limit."""
    answer = error(status, "requests", None, "are too many at a time.", fix)
    answer.headers["Retry-After"] = "5"
    return answer
