"""The REST API. Every error is {"error": {field, value, message, fix}}; a user error also lists all its `problems`."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy import exc
from starlette.exceptions import HTTPException

from app.access import callers, changes, quickstart
from app.documents.run import brief, document
from app.errors import is_full, storage_problem
from app.format.datasets import data_problems
from app.web.rest.openapi import RUN_BODY, methods_of
from app.web.rest.routing import Answer, JsonRouter, Key, Limit, Offset, Step, answers, malformed, settings_object
from app.web.rest.run_answers import RunAnswer, RunList, SeriesList
from app.web.security import HEADERS, ErrorResponse, error
from training.config.choices import Strategy
from training.config.fields import parse
from training.errors import DataError, UserError
from worker.runs import submit
from worker.store import database, run_list, runs, series
from worker.store.database import UNREACHABLE
from worker.store.submissions import Submission
from worker.store.tables import Status


class Health(Answer):
    """The server and its database work."""

    status: Literal["ok"]


_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "QUERY"]

router = JsonRouter()
rest = APIRouter()


@router.get("/healthz", **answers(Health))
def health() -> dict[str, str]:
    """Answers {"status": "ok"} if the database is reachable."""
    with database.read() as session:
        database.now(session=session)
    return {"status": "ok"}


@router.get("/api/runs", **answers(RunList))
def list_runs(
    status: Status | None = None,
    search: str = "",
    limit: Limit = 200,
    offset: Offset = 0,
) -> dict[str, Any]:
    """The runs that match, pinned ones first, then the newest, and how many there are in all."""
    with database.read() as session:
        found = run_list.listing(session=session, status=status, search=search, limit=limit, offset=offset)
        total = run_list.count(session=session, status=status, search=search)
    return {"runs": [brief(run) for run in found], "total": total}


@router.post("/api/runs", status_code=201, openapi_extra=RUN_BODY, **answers(RunAnswer, 201))
def create_run(
    values: Annotated[Any, Body()],
    key: Key = None,
    parent: Annotated[str | None, Query(description="The run of which this one is a clone.")] = None,
) -> dict[str, Any]:
    """Queues a run; the body is a JSON object of settings (docs/configuration.md).

    Raises:
        ConfigError: settings are invalid; answered with 422 and all problems.
        KeyReused: the key was sent before with another body; answered with 409.
        RunNotFound: there is no run `parent`; answered with 404.
    """
    origin = _document(parent)["id"] if parent else None
    caller, config = callers.current(), parse(settings_object(values))
    body = {"parent": origin, "settings": values} if origin else values
    submission = Submission.of(key, caller.name, body) if key else None
    return _document(
        submit.submit(config, allowed=caller.allowed, owner=caller.name, parent_id=origin, submission=submission).id
    )


@router.post("/api/runs/sample", status_code=201, **answers(RunAnswer, 201))
def create_sample_run() -> dict[str, Any]:
    """Queues the sample run: the starter model learns to write orders as JSON. Its data are stored as data sets."""
    return _document(quickstart.start().id)


@router.get("/api/runs/{run_id}", **answers(RunAnswer))
def show_run(run_id: str) -> dict[str, Any]:
    """One run with its events, summary and latest metrics."""
    return _document(run_id)


@router.get("/api/runs/{run_id}/series", **answers(SeriesList))
def show_series(
    run_id: str,
    names: str = "",
    points: Annotated[int, Query(ge=1, le=10_000)] = 400,
    first_step: Step = None,
    last_step: Step = None,
) -> dict[str, Any]:
    """The run's metrics with about `points` points each; `names` are separated by commas, empty for all."""
    wanted = [name.strip() for name in names.split(",") if name.strip()] or None
    with database.read() as session:
        run = runs.get(session=session, run_id=run_id)
        lines = series.series(
            session=session, run_id=run.id, names=wanted, points=points, first_step=first_step, last_step=last_step
        )
    return {"series": [vars(line) for line in lines]}


@router.post("/api/runs/{run_id}/stop", **answers(RunAnswer))
def stop_run(run_id: str) -> dict[str, Any]:
    """Requests a run to stop: it saves a checkpoint after the current step and exits."""
    changes.stop(run_id)
    return _document(run_id)


@router.post("/api/runs/{run_id}/resume", **answers(RunAnswer))
def resume_run(
    run_id: str,
    step_down: bool = False,
    strategy: Strategy | None = None,
    num_processes: Annotated[int | None, Query(ge=1, le=1024)] = None,
) -> dict[str, Any]:
    """Resumes a failed, stopped or diverged run from its last complete checkpoint; `step_down` applies the settings proposed after
    an out-of-memory error. With another `strategy` or number of processes the checkpoint is divided anew, and
    gradient_accumulation_steps changes so that the global batch size stays.
    """
    changes.resume(run_id, step_down=step_down, strategy=strategy, num_processes=num_processes)
    return _document(run_id)


@rest.api_route("/api/{path:path}", methods=_METHODS, response_model=None, include_in_schema=False)
def unknown_path(request: Request, path: str) -> JSONResponse:
    """The answer to unknown paths and methods under /api/, which would otherwise reach the pages."""
    place, fix = f"/api/{path}", "The page /api/docs lists all routes."
    allowed = methods_of(request.app.openapi(), place)
    if not allowed:
        return error(404, "path", place, "is not part of the API.", fix)
    answer = error(405, "method", request.method, f"is not a method of {place}.", f"Use {' or '.join(allowed)}.")
    answer.headers["Allow"] = ", ".join(allowed)
    return answer


def install_error_handlers(app: FastAPI) -> None:
    """Answers every user error with field, value, message and fix."""

    @app.exception_handler(UserError)
    async def refused(_: Request, refused: UserError) -> JSONResponse:
        found = data_problems(refused) if isinstance(refused, DataError) else refused.problems
        return ErrorResponse(refused.status, *found)

    app.add_exception_handler(RequestValidationError, malformed)  # type: ignore[arg-type]

    async def not_stored(_: Request, error: Exception) -> JSONResponse:
        problem = storage_problem(error)
        if problem is None or isinstance(error, exc.IntegrityError | exc.DataError | exc.ProgrammingError):
            raise error  # a bug
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


def _document(run_id: str) -> dict[str, Any]:
    with database.read() as session:
        return document(session, run_id)
