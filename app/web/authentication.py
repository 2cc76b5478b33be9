"""Authentication: every request except /healthz needs a known caller, else it gets a 401.

Loopback requests from processes of the server's own user need no token. All others send a token, as a cookie or as
`Authorization: Bearer`, or a trusted proxy names the user (app/access/identity.py).
"""

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.access import callers
from app.access.callers import Call
from app.access.identity import BadToken, Identity
from app.web import sign_in
from app.web.security import Rules, error
from worker.settings import Settings
from worker.store.database import UNREACHABLE

OPEN_PATHS = ("/healthz",)
_ASK = "Open the address that `lathe up` or `lathe token` prints, or send its token as Authorization: Bearer TOKEN."


class Authentication:
    """Identifies the caller of each request. What a handler refuses becomes the response, with its status."""

    def __init__(self, app: ASGIApp, rules: Rules, settings: Settings) -> None:
        self.app, self.rules = app, rules
        self.identity = Identity(settings)
        self.forms = sign_in.Forms(self.identity, rules, settings)

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
        if sign_in.is_page(scope):
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
