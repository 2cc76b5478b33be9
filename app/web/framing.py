"""Middleware: the security headers of browsers on every response, and our frame around Gradio's pages."""

import secrets

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.web.security import HEADERS, without_header
from app.web.theme import chosen, frame

# Gradio compiles its templates in the browser and needs unsafe-eval; inline scripts run only with the nonce.
_CONTENT_POLICY = (
    "default-src 'self'; script-src 'self' 'nonce-{nonce}' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; worker-src 'self' blob:; object-src 'none'; base-uri 'self'; "
    "form-action 'self'; frame-ancestors 'none'"
)


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
            if headers.get("content-type", "").startswith("text/html"):
                headers.setdefault("Content-Security-Policy", _CONTENT_POLICY.format(nonce=self.nonce))
                headers["Cache-Control"] = "no-store"
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
            self.body = frame(self.body.decode(), self.path, self.nonce, colors).encode()
            MutableHeaders(scope=start)["Content-Length"] = str(len(self.body))
        await self.send(start)
        await self.send({"type": "http.response.body", "body": self.body})


def _uncompressed(scope: Scope) -> Scope:
    """Removes accept-encoding for pages, which we edit; the large files of a page stay compressed."""
    if "." in scope["path"] or scope["path"].startswith(("/gradio_api/", "/api/")):
        return scope
    return without_header(scope, b"accept-encoding")
