"""Signing in with a token: the page that asks for it, and the cookie that keeps it. Needs no script and no other file."""

import re
from functools import cache
from urllib.parse import parse_qs, urlencode

from markupsafe import Markup, escape
from starlette.datastructures import Headers, QueryParams
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import Receive, Scope

from app import tokens
from app.addresses import PAGES
from app.identity import BadToken, Identity
from app.security import Rules, error
from app.theme import STATIC
from worker.settings import Settings

SIGN_IN, SIGN_OUT = "/sign-in", "/sign-out"
_KEPT_SECONDS = 30 * 24 * 3600
_FORM_BYTES = 8192
_PAGES = {SIGN_IN, *(page.path for page in PAGES)}
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"


class Forms:
    """Answers the sign-in page, its form, and addresses that bring a token along."""

    def __init__(self, identity: Identity, rules: Rules, settings: Settings) -> None:
        self._identity, self._rules = identity, rules
        self._cookie = tokens.cookie_name(settings)

    async def answer(self, scope: Scope, receive: Receive) -> Response | None:
        """The answer to a request that is about signing in; None for every other.

        Raises:
            BadToken: the address brings a token that is nobody's.
        """
        path, query = scope["path"], QueryParams(scope["query_string"])
        if path in (SIGN_IN, SIGN_OUT) and scope["method"] == "POST":
            return await self._posted(scope, receive)
        if path == SIGN_IN and scope["method"] in ("GET", "HEAD") and "token" not in query:
            return self.page(scope)
        if "token" in query and is_page(scope) and not _from_elsewhere(scope):
            return await self._brought(scope, query)
        return None

    def page(self, scope: Scope, *, status: int = 200, wrong: bool = False) -> Response:
        """The page that asks for the token. It leads on to where the person wanted to go."""
        query = QueryParams(scope["query_string"])
        wanted = query.get("next", "/") if scope["path"] in (SIGN_IN, SIGN_OUT) else _address(scope, query)
        # A link on another site is followed without our cookie (SameSite=Strict); asked for again from here, it comes along.
        again = status == 401 and _from_elsewhere(scope) and "token" not in query
        headers = {"Content-Security-Policy": _POLICY, "Cache-Control": "no-store", "WWW-Authenticate": "Bearer"}
        if status != 401:
            del headers["WWW-Authenticate"]
        return HTMLResponse(_html(_safe(wanted), wrong=wrong, again=again), status, headers)

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

    async def _brought(self, scope: Scope, query: QueryParams) -> Response:
        try:
            await self._identity.of_token(scope, query["token"])
        except BadToken:
            return self.page(scope, status=401, wrong=True)
        return self._signed_in(scope, query["token"], _address(scope, query))

    def _signed_in(self, scope: Scope, token: str, wanted: str) -> Response:
        headers = Headers(scope=scope)
        encrypted = scope["scheme"] == "https" or headers.get("x-forwarded-proto", "").lower() == "https"
        answer = RedirectResponse(_safe(wanted), 303, {"Cache-Control": "no-store"})
        answer.set_cookie(
            self._cookie, token, max_age=_KEPT_SECONDS, httponly=True, samesite="strict", secure=encrypted
        )
        return answer


def is_page(scope: Scope) -> bool:
    """Whether a person's browser asks for a page, and not a program or a script for data."""
    path, accepted = scope["path"], Headers(scope=scope).get("accept", "")
    data = path.startswith(("/api/", "/gradio_api/"))
    return scope["method"] == "GET" and not data and (path in _PAGES or "text/html" in accepted)


def _address(scope: Scope, query: QueryParams) -> str:
    """Where the request goes, without its token."""
    rest = [(name, value) for name, value in query.multi_items() if name != "token"]
    return str(scope["path"]) + (f"?{urlencode(rest)}" if rest else "")


def _safe(address: str) -> str:
    """An address on this server; the first page for any other."""
    if address.startswith((SIGN_IN, SIGN_OUT)):
        return "/"
    return address if re.fullmatch(r"/(?![/\\])[\x21-\x7e]*", address) and "\\" not in address else "/"


def _from_elsewhere(scope: Scope) -> bool:
    return Headers(scope=scope).get("sec-fetch-site") == "cross-site"


async def _body(receive: Receive) -> bytes:
    """The form as it was sent, as far as a form of ours can be long."""
    body, more = b"", True
    while more and len(body) <= _FORM_BYTES:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body[:_FORM_BYTES]


def _html(wanted: str, *, wrong: bool, again: bool) -> str:
    refresh = Markup('<meta http-equiv="refresh" content="0">') if again else ""
    alert = Markup('<p class="alert" role="alert">{}</p>').format("Invalid token. Check it and sign in again.") if wrong else ""
    parts = {"style": _style(), "refresh": refresh, "alert": alert, "action": SIGN_IN, "wanted": escape(wanted)}
    return _PAGE.format(**parts)


@cache
def _style() -> str:
    """The colors of all pages (the first rules of lathe.css) and what this page needs besides."""
    colors = (STATIC / "lathe.css").read_text(encoding="utf-8").partition("/* The frame */")[0]
    return colors + (STATIC / "sign-in.css").read_text(encoding="utf-8")


_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>Sign in - Lathe</title>{refresh}
<style>{style}</style>
</head>
<body>
<main>
<form method="post" action="{action}">
<h1>Lathe</h1>
<p>Enter a token to use this server.</p>
{alert}
<label for="token">Token</label>
<input id="token" name="token" type="password" autocomplete="current-password" required autofocus>
<input type="hidden" name="next" value="{wanted}">
<button type="submit">Sign in</button>
<p class="note"><code>lathe up</code> prints an address with its token, and <code>lathe token</code> shows it again.
A colleague gets a token of their own with <code>lathe user add NAME</code>.</p>
</form>
</main>
</body>
</html>
"""
