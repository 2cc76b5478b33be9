"""Errors that are a person's to mend, and leaving early when asked."""

from typing import Any


class UserError(Exception):
    """Something a person can mend: the field, the value given, what is wrong and the fix."""

    def __init__(self, field: str, value: Any, message: str, fix: str) -> None:
        super().__init__(f"{field} (given: {value!r}) {message}")
        self.field, self.value, self.fix = field, value, fix


class StopRequested(Exception):  # noqa: N818 - it is no error
    """The run was asked to leave."""
