"""The REST API. Every error is {"error": {field, value, message, fix}}; a user error also lists all its `problems`."""

import io
from typing import Annotated, Any

from fastapi import APIRouter, Body, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from app.access import callers, changes
from app.access.permissions import Forbidden
from app.documents import dataset as dataset_document
from app.documents.run import brief, document
from app.web import log_diagnosis
from app.web.security import error
from training.config.fields import ConfigError, parse
from training.errors import Problem, UserError
from training.foreign.translate import import_text
from worker.datasets.datasets import DatasetNotFound
from worker.forecasts import forecast, requested
from worker.runs import submit
from worker.store import database, runs, series
from worker.store.database import UNREACHABLE
from worker.store.runs import NotResumable, NotRunning, RunNotFound
from worker.store.tables import Status
from worker.supervision import run_diagnosis

_STATUS: dict[type[UserError], int] = {
    RunNotFound: 404,
    DatasetNotFound: 404,
    NotRunning: 409,
    NotResumable: 409,
    Forbidden: 403,
}

router = APIRouter()
rest = APIRouter()


@router.get("/healthz")
def health() -> dict[str, str]:
    """Answers {"status": "ok"} if the database is reachable."""
    with database.read() as session:
        database.now(session=session)
    return {"status": "ok"}


@router.get("/api/runs")
def list_runs(
    status: Status | None = None, search: str = "", limit: Annotated[int, Query(ge=1, le=1000)] = 200
) -> dict[str, Any]:
    """The runs, newest first."""
    with database.read() as session:
        return {
            "runs": [brief(run) for run in runs.listing(session=session, status=status, search=search, limit=limit)]
        }


@router.post("/api/runs", status_code=201)
def create_run(values: Annotated[Any, Body()]) -> dict[str, Any]:
    """Queues a run; the body is a JSON object of settings (docs/configuration.md).

    Raises:
        ConfigError: settings are invalid; answered with 422 and all problems.
    """
    caller = callers.current()
    return _document(submit.submit(parse(_settings(values)), reach=caller.reach, owner=caller.name).id)


@router.get("/api/runs/{run_id}")
def show_run(run_id: str) -> dict[str, Any]:
    """One run with its events, summary and latest metrics."""
    return _document(run_id)


@router.get("/api/runs/{run_id}/series")
def show_series(
    run_id: str,
    names: str = "",
    points: Annotated[int, Query(ge=1, le=10_000)] = 400,
    first_step: int | None = None,
    last_step: int | None = None,
) -> dict[str, Any]:
    """The run's metrics with about `points` points each; `names` are separated by commas, empty for all."""
    wanted = [name.strip() for name in names.split(",") if name.strip()] or None
    with database.read() as session:
        run = runs.get(session=session, run_id=run_id)
        lines = series.series(
            session=session, run_id=run.id, names=wanted, points=points, first_step=first_step, last_step=last_step
        )
    return {"series": [vars(line) for line in lines]}


@router.post("/api/runs/{run_id}/stop")
def stop_run(run_id: str) -> dict[str, Any]:
    """Requests a run to stop: it saves a checkpoint after the current step and exits."""
    changes.stop(run_id)
    return _document(run_id)


@router.post("/api/runs/{run_id}/resume")
def resume_run(run_id: str, step_down: bool = False) -> dict[str, Any]:
    """Resumes a failed or stopped run from its last complete checkpoint; `step_down` applies the settings proposed after an
    out-of-memory error.
    """
    changes.resume(run_id, step_down=step_down)
    return _document(run_id)


@router.get("/api/runs/{run_id}/diagnosis")
def diagnose_run(run_id: str) -> dict[str, Any]:
    """Why a run failed: cause, evidence and fix, from its log (docs/diagnosis.md)."""
    return run_diagnosis.of_run(run_id)


@router.post("/api/forecasts")
def forecast_run(
    values: Annotated[Any, Body()],
    gpu: str | None = None,
    gpus: Annotated[int | None, Query(ge=1, le=1024)] = None,
    host_memory: Annotated[float | None, Query(ge=0.5)] = None,
) -> dict[str, Any]:
    """The memory forecast of a run, and settings that fit. The body is a JSON object of settings; data is optional.

    `gpu` is a GPU's name or memory in GiB (default: this machine's), `host_memory` the host's memory in GiB.

    Raises:
        ConfigError: settings, GPU or model are invalid; answered with 422.
    """
    typed = _settings(values)
    config = requested.on_gpus(parse({"data": "none"} | typed), gpus, typed)
    if problems := callers.current().reach.problems(config):
        raise ConfigError(problems)
    return forecast.as_document(requested.forecast(config, gpu, host_memory)[0])


@router.post("/api/diagnoses")
async def diagnose_log(
    request: Request, model: str | None = None, micro_batch: Annotated[int | None, Query(ge=1)] = None
) -> dict[str, Any]:
    """Why a run failed, from its log in the body. `model` is a folder or config.json on the server, `micro_batch` the rows per
    forward pass.

    Raises:
        ConfigError: the body is empty, or the model cannot be read; answered with 422.
    """
    log = io.BytesIO(await request.body())
    return await run_in_threadpool(log_diagnosis.of_stream, log, model, micro_batch)


@router.post("/api/imports")
async def import_configuration(request: Request) -> dict[str, Any]:
    """A configuration of another program, in the body, as the settings of a run, key by key. Files that it names are not read.

    Raises:
        UserError: the body is a configuration of no known program; answered with 422.
    """
    text = (await request.body()).decode("utf-8", "replace")
    return await run_in_threadpool(lambda: import_text(text, None, "body").document())


@router.get("/api/datasets")
def list_datasets(search: str = "", limit: Annotated[int, Query(ge=1, le=1000)] = 200) -> dict[str, Any]:
    """The data sets, newest first."""
    with database.read() as session:
        return {"datasets": dataset_document.listing(session, search, limit)}


@router.get("/api/datasets/{dataset_id}")
def show_dataset(dataset_id: str) -> dict[str, Any]:
    """One data set with its warnings, its first rows and the runs that use it."""
    with database.read() as session:
        return dataset_document.document(session, dataset_id)


@rest.api_route("/api/{path:path}", methods=["GET", "POST"], response_model=None)
def unknown_path(path: str) -> JSONResponse:
    """The answer to unknown paths under /api/, which would otherwise reach the pages."""
    fix = "Use /api/runs, /api/datasets, /api/forecasts, /api/diagnoses or /api/imports."
    return error(404, "path", f"/api/{path}", "is not part of the API.", fix)


def install_error_handlers(app: FastAPI) -> None:
    """Answers every user error with field, value, message and fix."""

    @app.exception_handler(UserError)
    async def refused(_: Request, refused: UserError) -> JSONResponse:
        problems = [vars(problem) for problem in refused.problems]
        return JSONResponse({"error": problems[0], "problems": problems}, _STATUS.get(type(refused), 422))

    @app.exception_handler(RequestValidationError)
    async def malformed(_: Request, problem: RequestValidationError) -> JSONResponse:
        first = problem.errors()[0]
        place, *rest = (str(part) for part in first["loc"])
        field = "body" if place == "body" or not rest else rest[-1]
        value = str(first["input"]) if field != "body" else None
        return error(422, field, value, f"{first['msg']}.", "Correct it and send the request again.")

    async def database_unreachable(_: Request, problem: Exception) -> JSONResponse:
        cause = getattr(problem, "orig", problem)
        return error(503, "database", None, f"is unreachable: {cause}", "Try again in a moment.")

    for kind in UNREACHABLE:
        app.add_exception_handler(kind, database_unreachable)

    @app.exception_handler(HTTPException)
    async def other(request: Request, problem: HTTPException) -> JSONResponse:
        return error(problem.status_code, "request", request.url.path, str(problem.detail), "")


def _settings(values: Any) -> dict[str, Any]:
    if isinstance(values, dict):
        return values
    fix = 'Send the settings, for example {"model": "Qwen/Qwen3-0.6B", "data": "0123456789abcdef"}.'
    raise ConfigError([Problem("body", None, "is not a JSON object.", fix)])


def _document(run_id: str) -> dict[str, Any]:
    with database.read() as session:
        return document(session, run_id)
