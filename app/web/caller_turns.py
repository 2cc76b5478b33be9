"""Middleware: lets no caller take all the threads in which the server answers requests."""

import asyncio
from collections import Counter

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.access import callers
from app.web.authentication import OPEN_PATHS
from app.web.middleware import is_endless, is_followed

THREADS = 64
"""Threads for the requests of all callers together; without one, a request waits."""
AT_ONCE = 8
"""Requests of one caller that may take one at a time."""


class CallerTurns:
    """Lets requests of a caller beyond AT_ONCE wait until others of theirs are answered.

    A request has its turn until its answer begins: what follows, such as a file, takes threads for moments. Endless responses and
    those of models need no turn, since they wait without a thread.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._turns: dict[str, asyncio.Semaphore] = {}
        self._requests: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or _waits_without_a_thread(scope):
            return await self.app(scope, receive, send)
        name = callers.current().name
        self._requests[name] += 1
        turn = self._turns.setdefault(name, asyncio.Semaphore(AT_ONCE))
        try:
            await turn.acquire()
            ending = _Ending(turn, send)
            try:
                await self.app(scope, receive, ending)
            finally:
                ending.end()
        finally:
            self._requests[name] -= 1
            if not self._requests[name]:
                del self._requests[name], self._turns[name]


class _Ending:
    """Forwards a response, and ends the turn of its request when it begins."""

    def __init__(self, turn: asyncio.Semaphore, send: Send) -> None:
        self._turn, self._send, self._ended = turn, send, False

    async def __call__(self, message: Message) -> None:
        self.end()
        await self._send(message)

    def end(self) -> None:
        if not self._ended:
            self._ended = True
            self._turn.release()


def _waits_without_a_thread(scope: Scope) -> bool:
    path = scope["path"]
    return path in OPEN_PATHS or path.startswith("/v1/") or is_endless(scope) or is_followed(scope)
