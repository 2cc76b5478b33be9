"""Clients of served models: notices at once that one has left, and the headers by which its turn is kept."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from starlette.requests import Request

CLIENT_HEADER, QUEUE_HEADER, MOVED_HEADER = "X-Lathe-Client", "X-Lathe-Queue-Seconds", "X-Lathe-Moved"
"""Of a request to a serving process, who its client is; of an answer, how long it waited, and that it was refused because the
models are about to be replaced."""

ACCOUNT_ENDS = "/"
"""In a client's name, between its account, which takes turns with others, and what takes turns within those of the account."""

T = TypeVar("T")


class ClientLeft(Exception):  # noqa: N818
    """The client has closed its connection: nobody reads the answer."""


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """What `work` returns; it is cancelled when the client of a request, whose body has been read, leaves.

    Raises:
        ClientLeft: the client has left.
    """
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientLeft
        return working.result()
    finally:
        for one in (working, leaving):
            one.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
