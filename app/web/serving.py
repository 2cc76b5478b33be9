"""The uvicorn server, which ends the endless responses of open pages when it stops."""

import asyncio
import re
from types import FrameType

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_ENDLESS = re.compile(r"/gradio_api/(heartbeat/|queue/data).*|/api/runs/[^/]+/live")


class Streams:
    """Ends endless responses, once `leaving` is set, as if their client had disconnected."""

    def __init__(self, app: ASGIApp, leaving: asyncio.Event) -> None:
        self.app, self.leaving = app, leaving

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endless = scope["type"] == "http" and bool(_ENDLESS.fullmatch(scope["path"]))
        await self.app(scope, self._until_leaving(receive) if endless else receive, send)

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
