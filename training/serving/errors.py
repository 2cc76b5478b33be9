"""Errors of requests."""

from typing import Any

from training.errors import UserError


class RequestError(UserError):
    """A request that cannot be answered; `status` is its HTTP status."""

    def __init__(self, status: int, field: str, value: Any, message: str, fix: str) -> None:
        super().__init__(field, value, message, fix)
        self.status = status
