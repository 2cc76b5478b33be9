"""Errors that the user can fix, out-of-memory errors, and the stop request."""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from enum import Enum
from http import HTTPStatus
from typing import Any

_LONGEST_WRITTEN = 2000  # characters
_ENCODER = json.JSONEncoder(ensure_ascii=False, default=str)


@dataclass(frozen=True)
class Problem:
    """What is wrong: the field, the value given (None if there is none), the message, the fix, and settings that fix it."""

    field: str
    value: Any
    message: str
    fix: str = ""
    changes: dict[str, Any] = dataclass_field(default_factory=dict)

    @property
    def sentence(self) -> str:
        """Field, value and message."""
        given = "" if self.value is None else f" (given: {written(self.value)})"
        return f"{self.field}{given}: {self.message}" if self.field else self.message

    def __str__(self) -> str:
        return f"{self.sentence} {self.fix}".rstrip()


def written(value: Any) -> str:
    """A value as a person would write it: a text in quotes, anything else as JSON; of a long list or mapping the beginning."""
    plain = value.value if isinstance(value, Enum) else value
    if isinstance(plain, str):
        return repr(str(plain))
    text = ""
    for part in _ENCODER.iterencode(plain):
        text += part
        if len(text) > _LONGEST_WRITTEN:
            return f"{text} ..."
    return text


EXPECTED_EXIT = 3
"""The exit status of a rank after a UserError, which it has printed."""


class UserError(Exception):
    """An error that the user can fix; `problems` has at least one entry. `message` and `fix` are those of the first.

    `status` is that of the answer to an HTTP request.
    """

    status = 422

    def __init__(self, field: str, value: Any, message: str, fix: str = "", *others: Problem) -> None:
        self.problems = [Problem(field, value, message, fix), *others]
        super().__init__("\n".join(map(str, self.problems)))

    @property
    def problem(self) -> Problem:
        """The first problem."""
        return self.problems[0]

    @property
    def message(self) -> str:
        return self.problem.message

    @property
    def fix(self) -> str:
        return self.problem.fix


class NotFound(UserError):  # noqa: N818
    """What was named does not exist, or the user does not see it."""

    status = 404


class Conflict(UserError):  # noqa: N818
    """The state of what was named does not allow the change."""

    status = 409


def answer_json(answer: Callable[[str], Any]) -> None:
    """The main function of a program that another process starts: prints what `answer` makes of the text on standard input as a
    line of JSON, or `problem` with the first problem of a UserError."""
    try:
        printed = answer(sys.stdin.read())
    except UserError as error:
        printed = {"problem": vars(error.problem)}
    sys.stdout.write(json.dumps(printed) + "\n")


def openai_form(status: int, problem: Problem) -> dict[str, Any]:
    """An error as OpenAI's clients read it (message, type, param, code), with the value and the fix beside it."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    code = _CODES.get((status, problem.field)) or _CODES.get((status, "")) or HTTPStatus(status).name.lower()
    value = problem.value
    shown = None if value is None else (value if isinstance(value, str) else written(value))[:200]
    text = str(Problem(problem.field, shown, problem.message, problem.fix))
    facts = {"field": problem.field, "value": shown, "fix": problem.fix}
    return {"error": {"message": text, "type": kind, "param": problem.field or None, "code": code, **facts}}


_CODES = {
    (401, ""): "invalid_api_key",
    (404, "model"): "model_not_found",
    (429, ""): "rate_limit_exceeded",
    (500, ""): "server_error",
}
"""What OpenAI calls an error, by status and field; others have the name of their status."""


class DataError(UserError):
    """A data set that cannot train: the place (`file`, `line` from 1, `field`), the problem and the fix."""

    def __init__(self, message: str, fix: str, *, file: str = "", line: int | None = None, field: str = "") -> None:
        place = ", ".join(part for part in (file, f"row {line}" if line else "", field) if part)
        super().__init__(place, None, message, fix)
        self.file, self.line, self.field = file, line, field


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an error and what caused it, the last cause last."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def is_out_of_memory(error: BaseException | None) -> bool:
    """True for an out-of-memory error of torch, cuBLAS or cuDNN, or an error caused by one."""
    return any(
        type(cause).__name__ == "OutOfMemoryError" or any(sign in str(cause) for sign in _NO_MEMORY)
        for cause in causes(error)
    )


_NO_MEMORY = (
    "CUDA out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "Free memory on device",  # vLLM: is less than its share
)


class NothingToLearn(UserError):  # noqa: N818
    """The samples of the untrained model leave a run nothing to learn from."""


class StopRequested(BaseException):
    """Raised to stop the run on request, anywhere before training: no `except Exception` of a library may catch it."""


class ReviewRequested(StopRequested):
    """Raised where a run stops before its first step, so that a person reads its samples."""
