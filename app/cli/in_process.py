"""REST without a server: calls the routes in this process. httpx would take a tenth of a second to import."""

import asyncio
import json
import threading
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from typing import Any
from urllib.parse import unquote, urlencode

from app.web.rest.application import application

Message = MutableMapping[str, Any]

_WAITING = 8  # parts of an answer


@contextmanager
def answered(
    method: str,
    path: str,
    *,
    params: dict[str, Any] | None = None,
    json: Any = None,
    headers: dict[str, str] | None = None,
    files: Sequence[Path] = (),
) -> Iterator["Answer"]:
    """The answer of a route, which is read as it is written. The arguments are those of httpx, but `files` are only named.

    Raises:
        Exception: what the route raises.
    """
    answer = Answer(_scope(method, path, params or {}, headers or {}, files), _encoded(json))
    # The thread is a daemon, and so are those that it starts: Ctrl-C ends the command at once.
    threading.Thread(target=asyncio.run, args=(answer.write(),), daemon=True).start()
    answer.start()
    try:
        yield answer
    finally:
        answer.close()


class Answer:
    """An answer that a route writes in one thread and the command reads in another. Has the names of httpx.Response."""

    is_redirect = False

    def __init__(self, scope: Message, body: bytes) -> None:
        self.status_code, self.content = 0, b""
        self._scope, self._body = scope, [body]
        self._parts: Queue[Message | BaseException | None] = Queue(_WAITING)
        self._unread, self._ended = False, False

    @property
    def is_success(self) -> bool:
        return 200 <= self.status_code < 300

    @property
    def text(self) -> str:
        return self.content.decode()

    def json(self) -> Any:
        return json.loads(self.content)

    def read(self) -> None:
        self.content = b"".join(self.iter_bytes())

    def iter_bytes(self) -> Iterator[bytes]:
        while not self._ended:
            yield self._part().get("body", b"")

    def start(self) -> None:
        """Waits for the status of the answer."""
        self.status_code = self._part()["status"]

    def close(self) -> None:
        """Ends the route if the answer is not read to its end."""
        self._unread = True
        while not self._ended:
            self._taken()

    def _part(self) -> Message:
        """The next message of the route; an empty one at the end."""
        part = self._taken()
        if isinstance(part, BaseException):
            raise part
        return part or {}

    def _taken(self) -> Message | BaseException | None:
        part = self._parts.get()
        self._ended = part is None or isinstance(part, BaseException)
        return part

    async def write(self) -> None:
        """Calls the route."""
        try:
            await application(self._scope["path"])(self._scope, self._receive, self._send)
        except BaseException as error:
            self._parts.put(error)
        else:
            self._parts.put(None)

    async def _receive(self) -> Message:
        return {"type": "http.request", "body": self._body.pop() if self._body else b"", "more_body": False}

    async def _send(self, message: Message) -> None:
        if self._unread:
            raise OSError("The command does not read the answer to its end.")
        self._parts.put(message)


def _encoded(values: Any) -> bytes:
    return b"" if values is None else json.dumps(values).encode()


def _scope(method: str, path: str, params: dict[str, Any], headers: dict[str, str], files: Sequence[Path]) -> Message:
    named = {"content-type": "application/json"} | headers
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": urlencode(params, doseq=True).encode(),
        "headers": [(name.lower().encode(), value.encode()) for name, value in named.items()],
        "client": None,
        "server": None,
        "state": {"files": files},
    }
