"""The uvicorn server, and the sockets on which it accepts connections.

Thousands of connections wait in one queue of the kernel, and /healthz waits behind them. To refuse one on arrival takes a fraction
of the time that the event loop's transport and uvicorn's protocol need for it.
"""

import asyncio
import socket
import sys
from types import FrameType

import uvicorn

from app.web.connections import HEALTH, Client, Limits

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
        try:
            sockets = sockets or await listeners(self.config.host, self.config.port, self._limits)
        except OSError as error:
            sys.exit(f"Error: {error}")
        await super().serve(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._leaving.set)
