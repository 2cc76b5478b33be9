"""Middleware: ends endless responses, limits requests, adds browsers' headers and our frame, and checks Gradio's calls."""

import asyncio
import re
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app import texts
from app.access import callers
from app.access.callers import Caller
from app.access.identity import BadToken, Identity
from app.access.uploads import NotUploaded, check_paths
from app.web import compression
from app.web.authentication import OPEN_PATHS
from app.web.security import HEADERS, UPLOAD_PATHS, error, without_header
from app.web.sessions import Sessions
from app.web.theme import chosen, frame
from training.config import json_text
from training.errors import Problem
from worker.store.database import UNREACHABLE

if TYPE_CHECKING:
    import gradio as gr

_IN_A_TURN = 8  # requests; each takes a millisecond until it waits for something

_ENDLESS = re.compile(r"/gradio_api/(heartbeat/|queue/data).*|/api/runs/[^/]+/live|/api/pages/.*")

_OF_PAGES = re.compile(r"/api/runs/[^/]+/live|/api/pages/.*")
"""What pages follow: it is in the language of the page."""


_FOLLOWED = re.compile(r"/api/runs/[^/]+/stream")
"""What programs follow: it ends with its run."""

IDENTITY_SECONDS = 5.0
"""Interval in which the callers of endless responses are identified again."""


def is_endless(scope: Scope) -> bool:
    """True for what pages follow as long as they are open."""
    return scope["type"] == "http" and bool(_ENDLESS.fullmatch(scope["path"]))


def is_followed(scope: Scope) -> bool:
    """True for what a program follows until a run has ended."""
    return scope["type"] == "http" and bool(_FOLLOWED.fullmatch(scope["path"]))


class Streams:
    """Ends endless responses, as if their client had disconnected: once `leaving` is set, and soon after the token or the name that
    began one stops standing for its caller."""

    def __init__(self, app: ASGIApp, leaving: asyncio.Event, identity: Identity) -> None:
        self.app, self.leaving, self.identity = app, leaving, identity

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not (is_endless(scope) or is_followed(scope)):
            return await self.app(scope, receive, send)
        ends = [asyncio.create_task(self._until_unknown(scope, callers.current()))]
        if is_endless(scope):
            ends.append(asyncio.create_task(self._until_leaving()))
        try:
            await self.app(scope, _until(ends, receive), send)
        finally:
            for end in ends:
                end.cancel()

    async def _until_leaving(self) -> None:
        await self.leaving.wait()

    async def _until_unknown(self, scope: Scope, caller: Caller) -> None:
        """Returns once the request would be refused, or be another caller's."""
        while True:
            await asyncio.sleep(IDENTITY_SECONDS)
            with suppress(*UNREACHABLE):
                try:
                    if await self.identity.of(scope) != caller:
                        return
                except BadToken:
                    return


def _until(ends: "Sequence[asyncio.Task[None]]", receive: Receive) -> Receive:
    """Receives the messages of a client, which has disconnected once one of these tasks is done."""

    async def either() -> Message:
        message = asyncio.ensure_future(receive())
        try:
            await asyncio.wait((message, *ends), return_when=asyncio.FIRST_COMPLETED)
            return message.result() if message.done() else {"type": "http.disconnect"}
        finally:
            message.cancel()

    return either


class RequestLimits:
    """Refuses requests beyond `most` at a time.

    One caller has at most half as many endless responses of open pages, and a quarter as many other requests.
    """

    def __init__(self, app: ASGIApp, most: int) -> None:
        self.app, self.most = app, most
        self.open: Counter[tuple[str, bool]] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            return await self.app(scope, receive, send)
        endless = is_endless(scope)
        kind = callers.current().name, endless
        if self.open[kind] >= max(self.most // (2 if endless else 4), 1):
            fix = "Close some of your pages." if endless else "Wait for the answers to some of your requests."
            return await too_many(429, fix)(scope, receive, send)
        if self.open.total() >= self.most:
            return await too_many(503, "Try again in a moment, or raise LATHE_CONNECTIONS.")(scope, receive, send)
        self.open[kind] += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self.open[kind] -= 1
            self.open += Counter()  # drops counts of 0


class Turns:
    """Starts a few requests in each turn of the event loop, so that /healthz does not wait for hundreds that arrive with it."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._started = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            while self._started >= _IN_A_TURN:
                await asyncio.sleep(0)
            if not self._started:
                asyncio.get_running_loop().call_soon(self._begin)
            self._started += 1
        await self.app(scope, receive, send)

    def _begin(self) -> None:
        self._started = 0


def too_many(status: int, fix: str) -> JSONResponse:
    """The response to a request beyond a limit."""
    answer = error(status, "requests", None, "are too many at a time.", fix)
    answer.headers["Retry-After"] = "5"
    return answer


class Language:
    """Sets the language of each page, which the user chose on the page Settings; REST answers in English."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            is_rest = scope["path"].startswith("/api/") and not _OF_PAGES.fullmatch(scope["path"])
            texts.use("" if is_rest else Request(scope).cookies.get("lathe-language", ""))
        await self.app(scope, receive, send)


# Gradio compiles its templates in the browser and needs unsafe-eval; inline scripts run only with the nonce.
_CONTENT_POLICY = (
    "default-src 'self'; script-src 'self' 'nonce-{nonce}' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; worker-src 'self' blob:; object-src 'none'; base-uri 'self'; "
    "form-action 'self'; frame-ancestors 'none'"
)


_PUBLIC = (
    "/static/",
    "/assets/",
    "/theme.css",
    "/favicon.ico",
    "/robots.txt",
    "/manifest.json",
    "/gradio_api/theme.css",
)
"""Files of the installation, which are the same for all users."""


class BrowserRules:
    """Adds security headers, and our frame around Gradio's pages."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        nonce = secrets.token_urlsafe(16)
        return await self.app(_uncompressed(scope), receive, _Framing(scope, nonce, send))


class _Framing:
    """Forwards a response with added headers; buffers an HTML page to frame it."""

    def __init__(self, scope: Scope, nonce: str, send: Send) -> None:
        self.scope, self.path, self.nonce, self.send = scope, scope["path"], nonce, send
        self.start: Message | None = None
        self.body = b""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers.update(HEADERS)
            if self.path.startswith("/assets/") or (self.path == "/theme.css" and b"v=" in self.scope["query_string"]):
                headers["Cache-Control"] = "public, max-age=31536000, immutable"  # their addresses contain a hash
            elif not self.path.startswith(_PUBLIC):
                headers["Cache-Control"] = "private, no-store"
            if headers.get("content-type", "").startswith("text/html"):
                headers.setdefault("Content-Security-Policy", _CONTENT_POLICY.format(nonce=self.nonce))
                self.start = message
                return
        if self.start is None:
            await self.send(message)
        else:
            await self._hold(message, self.start)

    async def _hold(self, message: Message, start: Message) -> None:
        self.body += message.get("body", b"")
        if message.get("more_body"):
            return
        if b"<gradio-app" in self.body:
            colors = chosen(Request(self.scope).cookies)
            framed = await run_in_threadpool(
                frame, self.body.decode(), self.path, self.nonce, colors
            )  # may read the database
            self.body = framed.encode()
        self._pack(MutableHeaders(scope=start))
        await self.send(start)
        await self.send({"type": "http.response.body", "body": self.body})

    def _pack(self, headers: MutableHeaders) -> None:
        headers.add_vary_header("Accept-Encoding")
        if compression.is_worthwhile(self.body, Headers(scope=self.scope).get("accept-encoding", "")):
            self.body = compression.packed(self.body)
            headers["Content-Encoding"] = "gzip"
        if self.body:  # a HEAD request has none
            headers["Content-Length"] = str(len(self.body))


def _uncompressed(scope: Scope) -> Scope:
    """Removes accept-encoding for pages, which we edit and compress afterwards; the large files of a page stay compressed."""
    if "." in scope["path"] or scope["path"].startswith(("/gradio_api/", "/api/")):
        return scope
    return without_header(scope, b"accept-encoding")


_PREFIX = "/gradio_api/"
_HANDLERS = ("/gradio_api/run/predict", "/gradio_api/queue/join")
_NO_SESSION = 'data: {"msg": "unexpected_error", "message": "404", "session_not_found": true, "success": false}\n\n'
_STREAMS = re.compile(r"/gradio_api/(?:heartbeat/(\w+)|queue/data)")
_SESSION = re.compile(r"[\w-]{1,64}")
_RELOAD = "Reload the page."


class GradioCalls:
    """Refuses calls that name files other than uploads, unknown handlers, or the session of another user's page."""

    def __init__(self, app: ASGIApp, uploads: Path, pages: "Callable[[], gr.Blocks]") -> None:
        self.app, self.uploads, self.pages = app, uploads, pages
        self._sessions = Sessions(pages)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "").rstrip("/")
        if stream := _STREAMS.fullmatch(path):
            session = stream[1] or QueryParams(scope["query_string"]).get("session_hash")
            refusal = self._foreign(session) or (self._ended(session) if stream[1] is None else None)
            return await (refusal or self.app)(scope, receive, send)
        if scope["type"] != "http" or scope["method"] != "POST" or not path.startswith(_PREFIX) or path in UPLOAD_PATHS:
            return await self.app(scope, receive, send)
        messages = await _whole(receive)
        refusal = self._refusal(path, b"".join(message.get("body", b"") for message in messages))
        if refusal is not None:
            return await refusal(scope, receive, send)
        return await self.app(scope, _again(messages, receive), send)

    def _ended(self, session: str | None) -> Response | None:
        """The stream of a session that has no calls, as Gradio writes it before it fails: its page starts the session again."""
        if session is None or session in self.pages()._queue.pending_messages_per_session:
            return None
        return Response(_NO_SESSION, media_type="text/event-stream")

    def _refusal(self, path: str, body: bytes) -> JSONResponse | None:
        try:
            value = json_text.load(body) if body else None
            check_paths(value, self.uploads)
        except NotUploaded as refused:
            problem = refused.problem
            return error(403, problem.field, problem.value, problem.message, problem.fix)
        except json_text.JsonTextError as refused:
            return error(400, "body", None, f"is not valid JSON: {refused}.", _RELOAD)
        if (field := json_text.nul(value)) is not None:
            return error(422, field, None, json_text.HAS_NUL, json_text.REMOVE_NUL)
        session = value.get("session_hash") if isinstance(value, dict) else None
        return (self._unknown(path, value) if path in _HANDLERS else None) or self._foreign(session)

    def _unknown(self, path: str, value: Any) -> JSONResponse | None:
        number = value.get("fn_index") if isinstance(value, dict) else None
        known = self.pages().fns
        # True and 3.0 would equal the numbers of handlers.
        if type(number) is not int or number not in known or (path == _HANDLERS[1] and not known[number].queue):
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
        if self._sessions.owner(session, caller) == caller:
            return None
        return error(403, "session_hash", session, "is of another user's page.", _RELOAD)


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
