"""Middleware: lets no caller take all the threads in which the server answers requests."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.access import callers
from app.web.authentication import OPEN_PATHS
from app.web.middleware import is_endless, is_followed
from app.web.security import UPLOAD_PATHS

THREADS = 64
"""Threads for the requests of all callers together; without one, a request waits."""
AT_ONCE = 8
"""Requests of one caller that may take one at a time."""


class Turns:
    """The turns of all callers: each has AT_ONCE at a time."""

    def __init__(self) -> None:
        self._free: dict[str, asyncio.Semaphore] = {}
        self._wanted: Counter[str] = Counter()

    @asynccontextmanager
    async def taken(self) -> AsyncIterator[Callable[[], None]]:
        """Waits for a turn of the caller, and has it within the `with` block, or until the function that it yields is called."""
        name = callers.current().name
        self._wanted[name] += 1
        free = self._free.setdefault(name, asyncio.Semaphore(AT_ONCE))
        try:
            await free.acquire()
            with ExitStack() as turn:
                turn.callback(free.release)
                yield turn.close
        finally:
            self._wanted[name] -= 1
            if not self._wanted[name]:
                del self._wanted[name], self._free[name]


turns = Turns()
"""The turns of this process."""


class CallerTurns:
    """Lets requests of a caller beyond AT_ONCE wait until others of theirs are answered.

    An upload takes its turn when it has arrived: a slow one needs no thread, and eight would keep their user from all pages. A
    request has its turn until its answer begins: what follows, such as a file, takes threads for moments. Endless responses take
    a turn for each part of them (app/pages/common/view.py), and those of models none, since they wait without a thread.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or _waits_without_a_thread(scope):
            await self.app(scope, receive, send)
            return
        async with AsyncExitStack() as turn:
            if not _is_upload(scope):
                await turn.enter_async_context(turns.taken())

            async def receiving() -> Message:
                message = await receive()
                if _is_upload(scope) and message["type"] == "http.request" and not message.get("more_body"):
                    await turn.enter_async_context(turns.taken())
                return message

            async def ending(message: Message) -> None:
                await turn.aclose()
                await send(message)

            await self.app(scope, receiving, ending)


def _is_upload(scope: Scope) -> bool:
    return scope["method"] == "POST" and scope["path"].rstrip("/") in UPLOAD_PATHS


def _waits_without_a_thread(scope: Scope) -> bool:
    path = scope["path"]
    return path in OPEN_PATHS or path.startswith("/v1/") or is_endless(scope) or is_followed(scope)
