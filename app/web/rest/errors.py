"""The answers to errors: each is {"error": {field, value, message, fix}}; a user error also lists all its `problems`."""

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy import exc
from starlette.exceptions import HTTPException

from app.errors import is_full, storage_problem
from app.format.dataset_text import data_problems
from app.web.rest.openapi import methods_of
from app.web.security import HEADERS, ErrorResponse, error
from training.errors import DataError, Problem, UserError
from worker.store.database import UNREACHABLE

_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "QUERY"]

router = APIRouter()


@router.api_route("/api/{path:path}", methods=_METHODS, response_model=None, include_in_schema=False)
def unknown_path(request: Request, path: str) -> JSONResponse:
    """The answer to unknown paths and methods under /api/, which would otherwise reach the pages."""
    place, fix = f"/api/{path}", "The page /api/docs lists all routes."
    allowed = methods_of(request.app.openapi(), place)
    if not allowed:
        return error(404, "path", place, "is not part of the API.", fix)
    answer = error(405, "method", request.method, f"is not a method of {place}.", f"Use {' or '.join(allowed)}.")
    answer.headers["Allow"] = ", ".join(allowed)
    return answer


def install(app: FastAPI) -> None:
    """Answers every user error with field, value, message and fix."""

    @app.exception_handler(UserError)
    async def refused(_: Request, refused: UserError) -> JSONResponse:
        found = data_problems(refused) if isinstance(refused, DataError) else refused.problems
        return ErrorResponse(refused.status, *found)

    app.add_exception_handler(RequestValidationError, malformed)  # type: ignore[arg-type]

    async def not_stored(_: Request, raised: Exception) -> JSONResponse:
        problem = storage_problem(raised)
        if problem is None or isinstance(raised, exc.IntegrityError | exc.DataError | exc.ProgrammingError):
            raise raised  # a bug
        return ErrorResponse(507 if is_full(problem) else 503, problem)

    for kind in (*UNREACHABLE, exc.DatabaseError, OSError):
        app.add_exception_handler(kind, not_stored)

    @app.exception_handler(HTTPException)
    async def other(request: Request, problem: HTTPException) -> JSONResponse:
        return error(problem.status_code, "request", request.url.path, str(problem.detail), "")

    @app.exception_handler(Exception)
    async def failed(request: Request, problem: Exception) -> JSONResponse:
        message = f"failed with {type(problem).__name__}."
        answer = error(
            500, "request", request.url.path, message, "The server's log has the details. Report it as a bug."
        )
        answer.headers.update(HEADERS)  # this answer passes no middleware
        return answer


async def malformed(_: Request, raised: RequestValidationError) -> ErrorResponse:
    """The answer to values that have the wrong type or are out of bounds."""
    return ErrorResponse(422, *map(_problem, raised.errors()))


def _problem(invalid: Mapping[str, Any]) -> Problem:
    place, *rest = (str(part) for part in invalid["loc"])
    unread = invalid["type"] == "json_invalid"
    field, value = (place, None) if unread or not rest else (_joined(rest), str(invalid["input"])[:200])
    message = f"is not valid JSON: {invalid['ctx']['error']}." if unread else f"{invalid['msg']}."
    return Problem(field, value, message, "Correct it and send the request again.")


def _joined(names: list[str]) -> str:
    """The name of a value inside others, without positions in lists."""
    return ".".join(name for name in names if not name.isdigit()) or names[0]
