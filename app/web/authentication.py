"""Authentication: every request except /healthz needs a known caller, else it gets a 401.

Loopback requests from processes of the server's own user need no token. All others send a token, as a cookie or as
`Authorization: Bearer`, or a trusted proxy names the user (app/access/identity.py).
"""

import re
from functools import cache
from urllib.parse import parse_qs, urlencode, urlsplit

from markupsafe import Markup
from starlette.datastructures import Headers, QueryParams
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.access import callers, server_token
from app.access.callers import Call
from app.access.identity import BadToken, Identity
from app.access.peers import hostname
from app.web.addresses import PAGES
from app.web.assets import STATIC
from app.web.security import Rules, error
from app.web.templating import TEMPLATES
from worker.settings import Settings
from worker.store.database import UNREACHABLE

OPEN_PATHS = ("/healthz",)
_ASK = "Open the address that `lathe up` or `lathe token` prints, or send its token as Authorization: Bearer TOKEN."


class Authentication:
    """Identifies the caller of each request. What a handler refuses becomes the response, with its status."""

    def __init__(self, app: ASGIApp, rules: Rules, settings: Settings) -> None:
        self.app, self.rules = app, rules
        self.identity = Identity(settings)
        self.forms = Forms(self.identity, rules, settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return  # no page uses WebSockets
        if scope["path"] in OPEN_PATHS or self._is_preflight(scope):
            await self.app(scope, receive, send)
            return
        answer = await self._answer(scope, receive)
        if isinstance(answer, Response):
            await answer(scope, receive, send)
        else:
            await self.app(scope, receive, _Refusing(answer, scope, receive, send))

    async def _answer(self, scope: Scope, receive: Receive) -> Response | Call:
        """A response from here, or the call of a known caller."""
        try:
            if answer := await self.forms.answer(scope, receive):
                return answer
            caller = await self.identity.of(scope)
        except BadToken as bad:
            return self._refused(bad)
        except UNREACHABLE:
            return error(503, "database", None, "The database is unreachable.", "Try again in a moment.")
        if caller is not None:
            return callers.begin(caller)
        if is_page(scope):
            return self.forms.page(scope, status=401)
        return _unnamed("is missing.")

    def _refused(self, bad: BadToken) -> Response:
        if bad.too_many:
            return error(
                429,
                "token",
                None,
                "is one of too many invalid tokens from this address.",
                "Wait a second and try again.",
            )
        return _unnamed("is invalid.")

    def _is_preflight(self, scope: Scope) -> bool:
        """True for a CORS preflight request, which never has a token, from an allowed origin."""
        headers = Headers(scope=scope)
        preflight = scope["method"] == "OPTIONS" and "access-control-request-method" in headers
        return preflight and headers.get("origin") in self.rules.origins


class _Refusing:
    """Forwards a response, or what was refused before it started."""

    def __init__(self, call: Call, scope: Scope, receive: Receive, send: Send) -> None:
        self.call, self.scope, self.receive, self.send = call, scope, receive, send
        self.begun = self.replaced = False

    async def __call__(self, message: Message) -> None:
        if not self.begun and self.call.refused:
            self.replaced = True
            status, problem = self.call.refused[0]
            answer = error(status, problem.field, problem.value, problem.message, problem.fix)
            await answer(self.scope, self.receive, self.send)
        self.begun = True
        if not self.replaced:
            await self.send(message)


def _unnamed(message: str) -> Response:
    answer = error(401, "token", None, message, _ASK)
    answer.headers["WWW-Authenticate"] = "Bearer"
    return answer


SIGN_IN, SIGN_OUT = "/sign-in", "/sign-out"
_KEPT_SECONDS = 30 * 24 * 3600
_FORM_BYTES = 8192
_PAGES = {SIGN_IN, *(page.path for page in PAGES)}
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"


class Forms:
    """Answers the sign-in page, its form, and addresses with a token."""

    def __init__(self, identity: Identity, rules: Rules, settings: Settings) -> None:
        self._identity, self._rules = identity, rules
        self._cookie = server_token.cookie_name(settings)
        self._public_url = settings.public_url

    async def answer(self, scope: Scope, receive: Receive) -> Response | None:
        """The response to a sign-in request; None for other requests.

        Raises:
            BadToken: the token in the address is invalid.
        """
        path, query = scope["path"], QueryParams(scope["query_string"])
        if path in (SIGN_IN, SIGN_OUT) and scope["method"] == "POST":
            return await self._posted(scope, receive)
        if path == SIGN_IN and scope["method"] in ("GET", "HEAD") and "token" not in query:
            return self.page(scope)
        if "token" in query and is_page(scope) and not _from_elsewhere(scope):
            return await self._with_token(scope, query)
        return None

    def page(self, scope: Scope, *, status: int = 200, wrong: bool = False) -> Response:
        """The page with the form, which then continues to the requested address."""
        query = QueryParams(scope["query_string"])
        wanted = query.get("next", "/") if scope["path"] in (SIGN_IN, SIGN_OUT) else _address(scope, query)
        # Links from other sites come without our cookie (SameSite=Strict); a refresh from our own page sends it.
        again = status == 401 and _from_elsewhere(scope) and "token" not in query
        headers = {"Content-Security-Policy": _POLICY, "Cache-Control": "no-store", "WWW-Authenticate": "Bearer"}
        if status != 401:
            del headers["WWW-Authenticate"]
        values = {"style": _style(), "action": SIGN_IN, "wanted": _safe(wanted), "wrong": wrong, "again": again}
        return HTMLResponse(TEMPLATES.get_template("sign_in.html").render(values), status, headers)

    async def _posted(self, scope: Scope, receive: Receive) -> Response:
        headers = Headers(scope=scope)
        if not self._rules.allows_origin(headers):
            return error(
                403, "origin", headers.get("origin"), "may not call this server.", "Use the page of this server."
            )
        if scope["path"] == SIGN_OUT:
            answer: Response = RedirectResponse(SIGN_IN, 303)
            answer.delete_cookie(self._cookie, httponly=True, samesite="strict")
            return answer
        form = parse_qs((await _body(receive)).decode("utf-8", "replace"))
        token, wanted = (form.get(name, [""])[0].strip() for name in ("token", "next"))
        try:
            await self._identity.of_token(scope, token)
        except BadToken as bad:
            return self.page(scope, status=429 if bad.too_many else 401, wrong=True)
        return self._signed_in(scope, token, wanted)

    async def _with_token(self, scope: Scope, query: QueryParams) -> Response:
        try:
            await self._identity.of_token(scope, query["token"])
        except BadToken:
            return self.page(scope, status=401, wrong=True)
        return self._signed_in(scope, query["token"], _address(scope, query))

    def _signed_in(self, scope: Scope, token: str, wanted: str) -> Response:
        encrypted = scope["scheme"] == "https" or self._is_proxied_with_tls(Headers(scope=scope))
        answer = RedirectResponse(_safe(wanted), 303, {"Cache-Control": "no-store"})
        answer.set_cookie(
            self._cookie, token, max_age=_KEPT_SECONDS, httponly=True, samesite="strict", secure=encrypted
        )
        return answer

    def _is_proxied_with_tls(self, headers: Headers) -> bool:
        """True behind a proxy with TLS: by what it says, or because users open the pages at an https address."""
        said = headers.get("x-forwarded-proto", "").lower()
        public = urlsplit(self._public_url)
        return said == "https" or (
            not said and public.scheme == "https" and hostname(headers.get("host", "")) == public.hostname
        )


def is_page(scope: Scope) -> bool:
    """True if a browser requests a page; false for data requests of programs and scripts."""
    path, accepted = scope["path"], Headers(scope=scope).get("accept", "")
    data = path.startswith(("/api/", "/gradio_api/"))
    return scope["method"] == "GET" and not data and (path in _PAGES or "text/html" in accepted)


def _address(scope: Scope, query: QueryParams) -> str:
    """The request's address without its token."""
    rest = [(name, value) for name, value in query.multi_items() if name != "token"]
    return str(scope["path"]) + (f"?{urlencode(rest)}" if rest else "")


def _safe(address: str) -> str:
    """The address if it is on this server, else "/"."""
    if address.startswith((SIGN_IN, SIGN_OUT)):
        return "/"
    return address if re.fullmatch(r"/(?![/\\])[\x21-\x7e]*", address) and "\\" not in address else "/"


def _from_elsewhere(scope: Scope) -> bool:
    return Headers(scope=scope).get("sec-fetch-site") == "cross-site"


async def _body(receive: Receive) -> bytes:
    """The submitted form, at most the length of our own form."""
    body, more = b"", True
    while more and len(body) <= _FORM_BYTES:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body[:_FORM_BYTES]


@cache
def _style() -> Markup:
    """The colors of all pages (the first rules of lathe.css) and the rules of this page."""
    colors = (STATIC / "lathe.css").read_text(encoding="utf-8").partition("/* The frame */")[0]
    return Markup(colors + (STATIC / "sign-in.css").read_text(encoding="utf-8"))  # noqa: S704 our own style sheet
