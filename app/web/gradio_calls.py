"""Checks calls of page handlers before Gradio reads them: they name uploads, known handlers, and the caller's session.

Gradio checks a file's path only in an application that its own `launch` has started, and gives a session to whoever names it.
"""

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.datastructures import QueryParams
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.access import callers
from app.access.uploads import NotUploaded, check_paths
from app.web.security import UPLOAD_PATHS, error
from training.config import json_text
from training.errors import Problem

if TYPE_CHECKING:
    import gradio as gr

_PREFIX = "/gradio_api/"
_HANDLERS = ("/gradio_api/run/predict", "/gradio_api/queue/join")
_STREAMS = re.compile(r"/gradio_api/(?:heartbeat/(\w+)|queue/data)")
_SESSION = re.compile(r"[\w-]{1,64}")
_MOST_SESSIONS = 10_000
_RELOAD = "Reload the page."


class GradioCalls:
    """Refuses calls that name files other than uploads, unknown handlers, or the session of another user's page.

    `queued` maps each handler's number to True if Gradio's queue runs it.
    """

    def __init__(self, app: ASGIApp, uploads: Path, queued: Callable[[], Mapping[int, bool]]) -> None:
        self.app, self.uploads, self.queued = app, uploads, queued
        self._owners: OrderedDict[str, str] = OrderedDict()  # of sessions, the latest last

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "").rstrip("/")
        if stream := _STREAMS.fullmatch(path):
            session = stream[1] or QueryParams(scope["query_string"]).get("session_hash")
            refusal = self._foreign(session)
            return await (refusal or self.app)(scope, receive, send)
        if scope["type"] != "http" or scope["method"] != "POST" or not path.startswith(_PREFIX) or path in UPLOAD_PATHS:
            return await self.app(scope, receive, send)
        messages = await _whole(receive)
        refusal = self._refusal(path, b"".join(message.get("body", b"") for message in messages))
        if refusal is not None:
            return await refusal(scope, receive, send)
        return await self.app(scope, _again(messages, receive), send)

    def _refusal(self, path: str, body: bytes) -> JSONResponse | None:
        try:
            value = json_text.load(body) if body else None
            check_paths(value, self.uploads)
        except NotUploaded as refused:
            problem = refused.problem
            return error(403, problem.field, problem.value, problem.message, problem.fix)
        except json_text.JsonTextError as refused:
            return error(400, "body", None, f"is not valid JSON: {refused}.", _RELOAD)
        session = value.get("session_hash") if isinstance(value, dict) else None
        return (self._unknown(path, value) if path in _HANDLERS else None) or self._foreign(session)

    def _unknown(self, path: str, value: Any) -> JSONResponse | None:
        number = value.get("fn_index") if isinstance(value, dict) else None
        known = self.queued()
        # True and 3.0 would equal the numbers of handlers.
        if type(number) is not int or number not in known or (path == _HANDLERS[1] and not known[number]):
            shown = None if number is None else str(number)[:80]
            return error(404, "fn_index", shown, "is not a handler of a page.", _RELOAD)
        return None

    def _foreign(self, session: Any) -> JSONResponse | None:
        """The refusal of a session that is another user's, or whose name no page has."""
        if session is None:
            return None
        if not isinstance(session, str) or not _SESSION.fullmatch(session):
            return error(422, "session_hash", str(session)[:80], "is not the name of a session.", _RELOAD)
        caller = callers.current().name
        owner = self._owners.setdefault(session, caller)
        self._owners.move_to_end(session)
        if len(self._owners) > _MOST_SESSIONS:
            self._owners.popitem(last=False)
        return None if owner == caller else error(403, "session_hash", session, "is of another user's page.", _RELOAD)


def refuse_invalid_values(blocks: "gr.Blocks") -> None:
    """Answers a call with 422 if a component refuses its value; Gradio answers 500, as for a handler that fails."""
    from gradio import Error

    preprocess = blocks.preprocess_data

    async def checked(*given: Any, **named: Any) -> Any:
        try:
            return await preprocess(*given, **named)
        except Exception as refused:
            reason = (str(refused).strip().splitlines() or [type(refused).__name__])[0][:300]
            callers.refuse(Problem("data", None, f"has a value that its field does not accept: {reason}", _RELOAD), 422)
            raise Error(reason, print_exception=False) from None

    setattr(blocks, "preprocess_data", checked)  # noqa: B010 mypy refuses the assignment


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
