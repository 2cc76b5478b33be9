"""Checks calls of page handlers before Gradio reads them: files must be uploads, and handlers must exist.

Gradio checks a file's path only in an application that its own `launch` has started.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.access.uploads import NotUploaded, check_paths
from app.web.security import UPLOAD_PATHS, error

_PREFIX = "/gradio_api/"
_HANDLERS = ("/gradio_api/run/predict", "/gradio_api/queue/join")


class GradioCalls:
    """Refuses calls that name files other than uploads, or unknown handlers.

    `queued` maps each handler's number to True if Gradio's queue runs it.
    """

    def __init__(self, app: ASGIApp, uploads: Path, queued: Callable[[], Mapping[int, bool]]) -> None:
        self.app, self.uploads, self.queued = app, uploads, queued

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "").rstrip("/")
        if scope["type"] != "http" or scope["method"] != "POST" or not path.startswith(_PREFIX) or path in UPLOAD_PATHS:
            return await self.app(scope, receive, send)
        messages = await _whole(receive)
        refusal = self._refusal(path, b"".join(message.get("body", b"") for message in messages))
        if refusal is not None:
            return await refusal(scope, receive, send)
        return await self.app(scope, _again(messages, receive), send)

    def _refusal(self, path: str, body: bytes) -> JSONResponse | None:
        try:
            value = json.loads(body) if body else None
            check_paths(value, self.uploads)
        except NotUploaded as refused:
            problem = refused.problem
            return error(403, problem.field, problem.value, problem.message, problem.fix)
        except (ValueError, RecursionError):
            return error(400, "body", None, "is not JSON.", "Reload the page.")
        return self._unknown(path, value) if path in _HANDLERS else None

    def _unknown(self, path: str, value: Any) -> JSONResponse | None:
        number = value.get("fn_index") if isinstance(value, dict) else None
        known = self.queued()
        # True and 3.0 would equal the numbers of handlers.
        if type(number) is not int or number not in known or (path == _HANDLERS[1] and not known[number]):
            shown = None if number is None else str(number)[:80]
            return error(404, "fn_index", shown, "is not a handler of a page.", "Reload the page.")
        return None


async def _whole(receive: Receive) -> list[Message]:
    messages = [await receive()]
    while messages[-1].get("more_body"):
        messages.append(await receive())
    return messages


def _again(messages: list[Message], receive: Receive) -> Receive:
    """Returns the received messages first, then new ones."""
    waiting = iter(messages)

    async def replayed() -> Message:
        return next(waiting, None) or await receive()

    return replayed
