"""Errors that are a person's to mend, and leaving early when asked."""

from typing import Any


class UserError(Exception):
    """Something a person can mend: the field, the value given, what is wrong and the fix."""

    def __init__(self, field: str, value: Any, message: str, fix: str) -> None:
        super().__init__(f"{field} (given: {value!r}) {message}")
        self.field, self.value, self.message, self.fix = field, value, message, fix


class DataError(ValueError):
    """A data set that cannot train: where (`file`, `line` from 1, `field`), what (`message`) and what to do (`fix`)."""

    def __init__(self, message: str, fix: str, *, file: str = "", line: int | None = None, field: str = "") -> None:
        place = ", ".join(part for part in (file, f"row {line}" if line else "", field) if part)
        super().__init__(f"{place + ': ' if place else ''}{message} {fix}".strip())
        self.file, self.line, self.field, self.message, self.fix = file, line, field, message, fix


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether device memory ran out, by torch's own error or by that of a library which could not allocate."""
    while error is not None:
        if type(error).__name__ == "OutOfMemoryError" or any(sign in str(error) for sign in _NO_MEMORY):
            return True
        error = error.__cause__ or error.__context__
    return False


_NO_MEMORY = ("CUDA out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")


class StopRequested(Exception):  # noqa: N818 - it is no error
    """The run was asked to leave."""
