"""Checks the JSON bodies of REST requests before they are read: nesting, numbers and characters that no answer could show again."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.web.security import error
from training.config.json_text import JsonTextError, load

_PREFIXES = ("/api/", "/v1/")


class JsonBodies:
    """Answers 422 to a body that says it is JSON and cannot be read or stored."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(_PREFIXES) or not _is_json(scope):
            return await self.app(scope, receive, send)
        messages = await whole(receive)
        body = b"".join(message.get("body", b"") for message in messages)
        try:
            load(body or b"null")
        except JsonTextError as refused:
            message, fix = f"cannot be read: {refused}.", "Correct it and send the request again."
            return await error(422, "body", None, message, fix)(scope, receive, send)
        return await self.app(scope, again(messages, receive), send)


def _is_json(scope: Scope) -> bool:
    kind = next((value for name, value in scope["headers"] if name == b"content-type"), b"")
    return b"json" in kind.lower() or (scope["path"].startswith("/v1/") and scope["method"] == "POST")


async def whole(receive: Receive) -> list[Message]:
    """All messages of a request's body."""
    messages = [await receive()]
    while messages[-1].get("more_body"):
        messages.append(await receive())
    return messages


def again(messages: list[Message], receive: Receive) -> Receive:
    """Returns the received messages first, then new ones."""
    waiting = iter(messages)

    async def replayed() -> Message:
        return next(waiting, None) or await receive()

    return replayed
