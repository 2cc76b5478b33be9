"""Connections to the web server: who opened each, and an end to those that never finish what they ask."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from app.peers import uid_of

PEER_UID = "peer_uid"
"""The key of a request's state that holds the user id of its client, None where it is not known."""


@dataclass
class Limits:
    """How long a client may take to send a request's head, or between two parts of its body, and how many may take it."""

    seconds: float
    most: int
    open: "dict[Connection, None]" = field(default_factory=dict)

    def admit(self, connection: "Connection") -> None:
        """Counts a request that is not whole yet; where there are too many, the oldest of them is closed."""
        self.open[connection] = None
        if len(self.open) > self.most:
            next(iter(self.open)).expire()


class Connection(H11Protocol):
    """uvicorn's connection, which closes where a request stays half sent."""

    def __init__(self, *given: Any, limits: Limits, **named: Any) -> None:
        super().__init__(*given, **named)
        self._limits = limits
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # Asked while the client cannot have closed its end and gone: then nobody would know whose it was.
        self.app_state = {**self.app_state, PEER_UID: _uid(self.client, self.server)}
        self._look()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look(moved=True)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        self._settle()
        super().connection_lost(exc)

    def expire(self) -> None:
        """Closes the connection at once."""
        self._settle()
        self.transport.abort()

    def _look(self, *, moved: bool = False) -> None:
        """Sets or lifts the time limit. A head has one for all of it, a body one for each part."""
        body = self.conn.their_state is h11.SEND_BODY
        head = self.conn.their_state is h11.IDLE and (self.scope is None or bool(self.conn.trailing_data[0]))
        if self.transport.is_closing() or not (body or head):
            self._settle()
        elif self._timer is None:
            self._start()
            self._limits.admit(self)
        elif body and moved:
            self._timer.cancel()
            self._start()

    def _start(self) -> None:
        self._timer = self.loop.call_later(self._limits.seconds, self._too_late)

    def _too_late(self) -> None:
        if self.flow.read_paused:  # it is this server that does not read on
            self._start()
        else:
            self.expire()

    def _settle(self) -> None:
        self._limits.open.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _uid(client: tuple[str, int] | None, server: tuple[str, int | None] | None) -> int | None:
    if client is None or server is None or server[1] is None:
        return None
    return uid_of(client, (server[0], server[1]))
