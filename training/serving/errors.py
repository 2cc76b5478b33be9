"""Errors of requests, in the shape of OpenAI's API."""

from typing import Any

from training.errors import UserError


class RequestError(UserError):
    """A request that cannot be answered; `status` is its HTTP status."""

    def __init__(self, status: int, field: str, value: Any, message: str, fix: str) -> None:
        super().__init__(field, value, message, fix)
        self.status = status


def body(status: int, field: str | None, value: Any, message: str, fix: str) -> dict[str, Any]:
    """The error as OpenAI's clients read it (message, type, param, code), with the value and the fix beside it."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    shown = None if value is None else str(value)[:200]
    subject = f"{field}{f' (given: {shown!r})' if shown is not None else ''}: " if field else ""
    text = f"{subject}{message} {fix}".strip()
    error = {"message": text, "type": kind, "param": field, "code": status, "value": shown, "fix": fix}
    return {"error": error}
