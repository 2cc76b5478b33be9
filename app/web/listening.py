"""The uvicorn server, and the sockets on which it accepts connections.

Thousands of connections wait in one queue of the kernel, and /healthz waits behind them. To refuse one on arrival takes a fraction
of the time that the event loop's transport and uvicorn's protocol need for it.
"""

import asyncio
import contextlib
import resource
import socket
import sys
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from http import HTTPStatus
from types import FrameType
from typing import Any

import anyio.to_thread
import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from app.access.peers import PEER_UID, uid_of
from app.web.caller_turns import THREADS
from app.web.middleware import too_many
from app.web.security import HEADERS

MANY_FILES = 65_536
HEALTH = b"GET /healthz "

_Address = tuple[Any, ...]  # of a socket: host and port; with IPv6, two numbers more
Peer = int | str
"""Who opened a connection: a user of this machine by the id, or an address."""


@dataclass(frozen=True)
class Client:
    """The other end of a connection: its user id, None if unknown, and the response to its requests if there are too many."""

    uid: int | None
    peer: Peer
    refusal: bytes


@dataclass
class Limits:
    """Limits on connections and incomplete requests.

    Attributes:
        seconds: for a request's head, or between two parts of its body.
        most: incomplete requests at a time; of one peer, half as many.
        connections: open connections of one peer; of all, twice as many.
        grace: seconds until a new connection counts, so that one whose request is already here is read first.
    """

    seconds: float
    most: int
    connections: int
    grace: float = 1.0
    waiting: "dict[Peer, dict[Connection, None]]" = field(default_factory=dict)
    open: Counter[Peer] = field(default_factory=Counter)

    def connect(self, address: _Address, server: _Address) -> Client:
        """Counts a new connection from this address."""
        uid = uid_of((address[0], address[1]), (server[0], server[1]))
        peer = address[0] if uid is None else uid
        self.open[peer] += 1
        return Client(uid, peer, self._refused(peer))

    def _refused(self, peer: Peer) -> bytes:
        if self.open[peer] > self.connections:
            return _refusal(429, "Close some of your pages and connections.")
        if self.open.total() > 2 * self.connections:
            return _refusal(503, "Try again in a moment, or raise LATHE_CONNECTIONS.")
        return b""

    def disconnect(self, peer: Peer) -> None:
        """Counts the connection no longer."""
        self.open[peer] -= 1
        if not self.open[peer]:
            del self.open[peer]

    def admit(self, connection: "Connection") -> None:
        """Counts an incomplete request; if there are too many, closes the oldest one of its peer, or of the peer with the most."""
        own = self.waiting.setdefault(connection.peer, {})
        own[connection] = None
        if len(own) > max(self.most // 2, 1):
            next(iter(own)).expire()
        elif sum(map(len, self.waiting.values())) > self.most:
            next(iter(self.waiting[max(self.waiting, key=lambda peer: len(self.waiting[peer]))])).expire()

    def release(self, connection: "Connection") -> None:
        """Counts the request no longer."""
        own = self.waiting.get(connection.peer, {})
        own.pop(connection, None)
        if not own:
            self.waiting.pop(connection.peer, None)


class Connection(H11Protocol):
    """uvicorn's connection, closed if a request stays incomplete.

    A connection beyond the limits gets a constant response, except to /healthz: to read thousands of requests only to refuse them
    would keep everybody waiting for seconds.
    """

    def __init__(self, *given: Any, limits: Limits, **named: Any) -> None:
        super().__init__(*given, **named)
        self._limits = limits
        self._timer: asyncio.TimerHandle | None = None
        self.peer: Peer = ""
        self._refused = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        client: Client = transport.get_extra_info("peername")  # what Listener.accept returns
        self.app_state = {**self.app_state, PEER_UID: client.uid}
        self.peer, self._refused = client.peer, client.refusal
        self._timer = self.loop.call_later(self._limits.grace, self._grace_ended)

    def data_received(self, data: bytes) -> None:
        if self._refused and not data.startswith(HEALTH):
            self.transport.write(self._refused)
            self._settle()
            self.transport.close()
            return
        super().data_received(data)
        self._update_timer(received=True)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._update_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._settle()
        self._limits.disconnect(self.peer)
        super().connection_lost(exc)

    def expire(self) -> None:
        """Closes the connection."""
        self._settle()
        self.transport.abort()

    def _update_timer(self, *, received: bool = False) -> None:
        """Starts or stops the time limit: one for a whole head, one for each part of a body."""
        body = self.conn.their_state is h11.SEND_BODY
        head = self.conn.their_state is h11.IDLE and (self.scope is None or bool(self.conn.trailing_data[0]))
        if self.transport.is_closing() or not (body or head):
            self._settle()
        elif self._timer is None:
            self._start()
            self._limits.admit(self)
        elif body and received:
            self._timer.cancel()
            self._start()

    def _start(self) -> None:
        self._timer = self.loop.call_later(self._limits.seconds, self._too_late)

    def _grace_ended(self) -> None:
        self._timer = None
        self._update_timer()

    def _too_late(self) -> None:
        if self.flow.read_paused:  # the server has paused reading, not the client
            self._start()
        else:
            self.expire()

    def _settle(self) -> None:
        self._limits.release(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


@cache
def _refusal(status: int, fix: str) -> bytes:
    answer = too_many(status, fix)
    answer.headers.update(HEADERS | {"Connection": "close"})
    head = b"".join(b"%s: %s\r\n" % header for header in answer.raw_headers)
    return b"HTTP/1.1 %d %s\r\n%s\r\n%s" % (status, HTTPStatus(status).phrase.encode(), head, bytes(answer.body))


def allow_many_sockets() -> None:
    """Raises the limit on open files of this process: at the limit, asyncio accepts no connection for a second."""
    now, highest = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MANY_FILES if highest == resource.RLIM_INFINITY else min(highest, MANY_FILES)
    if now not in (resource.RLIM_INFINITY, highest) and now < wanted:
        with contextlib.suppress(ValueError, OSError):  # macOS allows fewer than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, highest))


_REFUSED_AT_A_TIME = 100
_READ = 65_536  # bytes: what is not read makes the kernel send a reset, which can overtake the response


class Listener(socket.socket):
    """Refuses a connection beyond the limits whose request is already here; `Connection` refuses the others."""

    limits: Limits

    def accept(self) -> tuple[socket.socket, Client]:
        """The next connection that is not refused, and its client.

        Raises:
            BlockingIOError: no connection waits, or so many were refused that the event loop should go on with the open ones.
        """
        for _ in range(_REFUSED_AT_A_TIME):
            connection, address = super().accept()
            client = self.limits.connect(address, connection.getsockname())
            if not (client.refusal and _refused(connection, client.refusal)):
                return connection, client
            self.limits.disconnect(client.peer)
        raise BlockingIOError


def _refused(connection: socket.socket, refusal: bytes) -> bool:
    """Answers and closes the connection, unless its request has not arrived yet or is one to /healthz."""
    connection.setblocking(False)
    try:
        if connection.recv(len(HEALTH), socket.MSG_PEEK) == HEALTH:
            return False
        connection.recv(_READ)
        connection.send(refusal)
    except BlockingIOError:
        return False
    except OSError:
        pass  # the client is gone
    connection.close()
    return True


async def listeners(host: str, port: int, limits: Limits) -> list[socket.socket]:
    """A socket for each address of the host, bound as asyncio binds them.

    Raises:
        OSError: the address is in use, or not of this machine.
    """
    bound = await asyncio.get_running_loop().create_server(asyncio.Protocol, host, port, start_serving=False)
    created: list[socket.socket] = []
    for sock in bound.sockets:
        created.append(listener := Listener(fileno=sock.dup().detach()))
        listener.limits = limits
    bound.close()
    return created


class Server(uvicorn.Server):
    """uvicorn's server, which accepts connections within limits and sets `leaving` on a signal to stop."""

    def __init__(self, config: uvicorn.Config, leaving: asyncio.Event, limits: Limits) -> None:
        super().__init__(config)
        self._leaving, self._limits = leaving, limits
        self._loop: asyncio.AbstractEventLoop | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
        try:
            sockets = sockets or await listeners(self.config.host, self.config.port, self._limits)
        except OSError as error:
            sys.exit(f"Error: {error}")
        await super().serve(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._leaving.set)
