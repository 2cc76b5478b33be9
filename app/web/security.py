"""Security between the network and the pages: allowed hosts, origins, routes and body sizes, and the form of refusals.

Plain ASGI middleware outside Gradio, so it does not depend on Gradio's own checks.
"""

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.formparsers import MultiPartException
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.access.peers import hostname
from app.errors import shortened
from app.web.addresses import PAGES
from training.addresses import is_loopback
from training.errors import Problem, openai_form
from worker.settings import Settings

UPLOAD_PATHS = ("/gradio_api/upload", "/api/datasets", "/api/datasets/check", "/api/archives", "/diagnose", "/v1/files")
BODY_LIMIT = 4 * 1024**2
"""Maximum bytes of a request that is not an upload."""
ADDRESS_LIMIT = 16 * 1024
"""Maximum bytes of the path and the query of a request."""

_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")

# The routes of Gradio that the pages use. The others (file, proxy, info, call, monitoring, login, ...) are not served.
_GRADIO_ROUTES = re.compile(
    r"/(config|theme\.css|favicon\.ico|robots\.txt|manifest\.json|assets/.*|static/.*)"
    r"|/gradio_api/(run/predict|queue/(join|data)|upload|upload_progress|heartbeat/\w+|app_id|startup-events|cancel|reset|theme\.css)/?"
)
_OWN_ROUTES = re.compile(
    r"/api(/.*)?|/v1/(models(/[^/]+)?|chat/completions|completions|tokenize|files(/.*)?|fine_tuning/.*)|/healthz|/shared/[\w-]+|/static/lathe/.*"
)
_PAGES = frozenset(page.path for page in PAGES)

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}


@dataclass(frozen=True)
class Rules:
    """Allowed hosts and origins. `hosts` is None if other machines, whose names for this server are unknown, can reach it."""

    hosts: frozenset[str] | None
    origins: frozenset[str]

    @classmethod
    def of(cls, settings: Settings) -> "Rules":
        """The rules of the settings: pages of this server, and the origins in LATHE_ALLOWED_ORIGINS."""
        origins = frozenset(
            origin.strip().rstrip("/") for origin in settings.allowed_origins.split(",") if origin.strip()
        )
        if not is_loopback(settings.host):
            return cls(None, origins)
        named = {urlsplit(origin).hostname or "" for origin in origins}
        return cls(frozenset({"localhost", "127.0.0.1", "::1", settings.host.lower(), *named}), origins)

    def knows_host(self, host: str) -> bool:
        """True if a Host header names this server. The check stops DNS rebinding by pages of other sites."""
        return self.hosts is None or (hostname(host) in self.hosts)

    def allows_origin(self, headers: Headers) -> bool:
        """True if a request comes from our own page, from an allowed origin, or from no page (a program)."""
        origin = headers.get("origin")
        if origin is None:
            return headers.get("sec-fetch-site", "none") in ("none", "same-origin")
        return origin in self.origins or _authority(urlsplit(origin).netloc) == _authority(headers.get("host", ""))


class Hosts:
    """Refuses requests for another host."""

    def __init__(self, app: ASGIApp, rules: Rules) -> None:
        self.app, self.rules = app, rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        hosts = Headers(scope=scope).getlist("host") if scope["type"] == "http" else None
        host = ", ".join(hosts or ())
        if hosts is not None and (len(hosts) > 1 or "@" in host):
            fix = "Send one, with a name and a port alone."  # a proxy may read another one than this server
            await error(400, "host", host, "is not one name of a server.", fix)(scope, receive, send)
        elif hosts is None or self.rules.knows_host(host):
            await self.app(scope, receive, send)
        else:
            fix = "Open the address that the server printed, or add this one to LATHE_ALLOWED_ORIGINS."
            await error(403, "host", host, "is not a name of this server.", fix)(scope, receive, send)


class Gate:
    """Refuses requests from pages of other sites, to unknown routes, with two lengths, and with an endless address.

    A browser gets a page at an unknown route. What remains has no X-Forwarded-Host: Gradio would load its scripts from there, and
    only the Host header is checked.
    """

    def __init__(self, app: ASGIApp, rules: Rules, unknown: Callable[[Scope], Response]) -> None:
        self.app, self.rules, self.unknown = app, rules, unknown

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal is not None:
            await refusal(scope, receive, send)
        elif scope["type"] == "http":
            await self.app(without_header(scope, b"x-forwarded-host"), receive, send)
        else:
            await self.app(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        headers, path = Headers(scope=scope), scope["path"]
        if "transfer-encoding" in headers and "content-length" in headers:
            # A proxy that reads the other one would see another end of this request, and a second one after it.
            answer = error(
                400, "content-length", headers["content-length"], "comes with transfer-encoding.", "Send one."
            )
            answer.headers["Connection"] = "close"
            return answer
        if len(scope.get("raw_path") or path) + len(scope["query_string"]) > ADDRESS_LIMIT:
            return error(414, "address", None, f"is longer than {ADDRESS_LIMIT:,} bytes.", "Send a shorter one.")
        if path not in _PAGES and not _OWN_ROUTES.fullmatch(path) and not _GRADIO_ROUTES.fullmatch(path):
            if scope["method"] in _SAFE_METHODS and "text/html" in headers.get("accept", ""):
                return self.unknown(scope)
            fix = f"Use one of {', '.join(sorted(_PAGES))}, or the API under /api."
            return error(404, "path", path, "is not served here.", fix)
        guarded = path.startswith("/gradio_api/") or scope["method"] not in _SAFE_METHODS
        if guarded and not self.rules.allows_origin(headers):
            fix = "Add it to LATHE_ALLOWED_ORIGINS to allow it."
            return error(403, "origin", headers.get("origin"), "may not call this server.", fix)
        return None


class BodyLimit:
    """Refuses a body that is too large, by its declared length and by the bytes received."""

    def __init__(self, app: ASGIApp, upload_limit: int) -> None:
        self.app, self.upload_limit = app, upload_limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in _SAFE_METHODS:
            await self.app(scope, receive, send)
            return
        upload = scope["path"].rstrip("/") in UPLOAD_PATHS
        limit = self.upload_limit + 1024**2 if upload else BODY_LIMIT  # the form around the file is small
        declared = Headers(scope=scope).get("content-length", "0")
        if not declared.isdigit() or int(declared) > limit:
            await self._refusal(declared, upload=upload)(scope, receive, send)
            return
        body = _Counted(receive, limit)
        answer = _Unless(lambda: body.exceeded, send)
        with suppress(MultiPartException):  # too large (answered below), or aborted by the client
            await self.app(scope, body, answer)
        if body.exceeded and not answer.started:
            await self._refusal(f"more than {body.seen:,} bytes", upload=upload)(scope, receive, send)

    def _refusal(self, size: str, *, upload: bool) -> JSONResponse:
        limit = self.upload_limit if upload else BODY_LIMIT
        fix = "Use a file on the server, or raise LATHE_UPLOAD_LIMIT_BYTES." if upload else "Send a smaller request."
        return error(413, "file" if upload else "body", size, f"is larger than {limit:,} bytes.", fix)


class _Unless:
    """Forwards a response, unless `refused` is true before it starts."""

    def __init__(self, refused: Callable[[], bool], send: Send) -> None:
        self.refused, self.send, self.started = refused, send, False

    async def __call__(self, message: Message) -> None:
        if self.started or not self.refused():
            self.started = True
            await self.send(message)


class ErrorResponse(JSONResponse):
    """Problems in the form of all errors of the API; below /v1/ in that of OpenAI's API, which has only the first."""

    def __init__(self, status: int, *problems: Problem) -> None:
        short = [shortened(problem) for problem in problems]
        self._first = short[0]
        shown = [vars(problem) for problem in short]
        super().__init__({"error": shown[0], "problems": shown}, status)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"].startswith("/v1/"):
            self.status_code = 400 if self.status_code == 422 else self.status_code  # what OpenAI's clients know
            self.body = self.render(openai_form(self.status_code, self._first))
            self.headers["Content-Length"] = str(len(self.body))
        await super().__call__(scope, receive, send)


def error(status: int, field: str, value: str | None, message: str, fix: str) -> ErrorResponse:
    """A response with one problem."""
    return ErrorResponse(status, Problem(field, value, message, fix))


def without_header(scope: Scope, header: bytes) -> Scope:
    """The scope of the same request without a header."""
    return {**scope, "headers": [(name, value) for name, value in scope["headers"] if name != header]}


class _Counted:
    """Receives a request's body and refuses more than `limit` bytes."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self.receive, self.limit = receive, limit
        self.seen, self.whole, self.exceeded = 0, False, False

    async def __call__(self) -> Message:
        message = await self.receive()
        # Gradio's parser deletes its partial file only on a MultiPartException.
        if message["type"] == "http.disconnect" and not self.whole:
            raise MultiPartException("The upload was interrupted.")
        self.seen += len(message.get("body", b""))
        if self.seen > self.limit:
            self.exceeded = True
            raise MultiPartException(f"The body is larger than the maximum allowed size of {self.limit:,} bytes.")
        self.whole = not message.get("more_body", False)
        return message


def _authority(netloc: str) -> str:
    return re.sub(r":(80|443)$", "", netloc.lower())
