"""The REST API: what the pages show and do, for programs. Every error is {"error": {field, value, message, fix}}."""

import io
from typing import Annotated, Any

from fastapi import APIRouter, Body, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from app import callers, changes, dataset_document, forecasts, log_diagnosis
from app.callers import Forbidden
from app.run_document import brief, document
from app.security import error
from training.fields import ConfigError, Problem, parse
from worker import database, forecasting, metrics, run_diagnosis, runs, submit
from worker.datasets import DatasetNotFound
from worker.models import Status
from worker.patience import UNREACHABLE
from worker.runs import NotResumable, NotRunning, RunNotFound

router = APIRouter()
rest = APIRouter()


@router.get("/healthz")
def health() -> dict[str, str]:
    """That the server answers and its database does."""
    with database.read() as session:
        database.now(session=session)
    return {"status": "ok"}


@router.get("/api/runs")
def list_runs(status: Status | None = None, search: str = "", limit: Annotated[int, Query(ge=1, le=1000)] = 200) -> dict[str, Any]:
    """The history, newest first."""
    with database.read() as session:
        found = runs.listing(session=session, status=status, search=search, limit=limit)
    return {"runs": [brief(run) for run in found]}


@router.post("/api/runs", status_code=201)
def create_run(values: Annotated[Any, Body()]) -> dict[str, Any]:
    """Queues a run: the body is a RunConfig, the settings of docs/configuration.md as a JSON object.

    Raises:
        ConfigError: answered with 422 and every problem.
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
    """The run's metrics, thinned to about `points` each; `names` separated by commas, all where empty."""
    wanted = [name.strip() for name in names.split(",") if name.strip()] or None
    with database.read() as session:
        run = runs.get(session=session, run_id=run_id)
        found = metrics.series(
            session=session, run_id=run.id, names=wanted, points=points, first_step=first_step, last_step=last_step
        )
    return {"series": [vars(one) for one in found]}


@router.post("/api/runs/{run_id}/stop")
def stop_run(run_id: str) -> dict[str, Any]:
    """Asks a run to stop: it saves a checkpoint at the next step."""
    changes.stop(run_id)
    return _document(run_id)


@router.post("/api/runs/{run_id}/resume")
def resume_run(run_id: str, step_down: bool = False) -> dict[str, Any]:
    """Queues a failed or stopped run again, from its last whole checkpoint; `step_down`: as proposed when memory ran out."""
    changes.resume(run_id, step_down=step_down)
    return _document(run_id)


@router.get("/api/runs/{run_id}/diagnosis")
def diagnose_run(run_id: str) -> dict[str, Any]:
    """Why a run failed: the cause, its evidence and the fix, from what it printed (docs/diagnosis.md)."""
    return run_diagnosis.of_run(run_id)


@router.post("/api/forecasts")
def forecast_run(
    values: Annotated[Any, Body()],
    gpu: str | None = None,
    gpus: Annotated[int | None, Query(ge=1, le=1024)] = None,
    host_memory: Annotated[float | None, Query(ge=0.5)] = None,
) -> dict[str, Any]:
    """How much memory a run takes, and what fits: the body is a RunConfig, whose data may be left out. `gpu` is a card's name or
    its memory in GiB, this machine's where it is left out; `host_memory` GiB of the machine.

    Raises:
        ConfigError: answered with 422: a setting, the card or the model cannot be.
    """
    given = _settings(values)
    config = forecasts.on_gpus(parse({"data": "none"} | given), gpus, given)
    if problems := callers.current().reach.problems(config):
        raise ConfigError(problems)
    return forecasting.as_document(forecasts.foresee(config, gpu, host_memory)[0])


@router.post("/api/diagnoses")
async def diagnose_log(
    request: Request, model: str | None = None, micro_batch: Annotated[int | None, Query(ge=1)] = None
) -> dict[str, Any]:
    """Why a run failed, from its log, which is the body. `model` is a folder or config.json of the server, `micro_batch` its rows.

    Raises:
        ConfigError: answered with 422: the body is empty, or the model cannot be read.
    """
    log = io.BytesIO(await request.body())
    return await run_in_threadpool(log_diagnosis.of_stream, log, model, micro_batch)


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
    """Whatever else begins with /api/, so that it is answered here and not by the pages."""
    known = "There are /api/runs, /api/datasets, /api/forecasts and /api/diagnoses."
    return error(404, "path", f"/api/{path}", "is not part of the API.", known)


def install_error_handlers(app: FastAPI) -> None:
    """Answers every error that a caller can cause with the field, the value, the message and the fix."""

    @app.exception_handler(RunNotFound)
    async def unknown(request: Request, problem: RunNotFound) -> JSONResponse:
        return error(404, "run", request.path_params.get("run_id"), str(problem), "GET /api/runs lists the runs.")

    @app.exception_handler(DatasetNotFound)
    async def unknown_data(request: Request, problem: DatasetNotFound) -> JSONResponse:
        return error(404, "dataset", request.path_params.get("dataset_id"), str(problem), "GET /api/datasets lists them.")

    @app.exception_handler(NotRunning)
    @app.exception_handler(NotResumable)
    async def conflict(request: Request, problem: Exception) -> JSONResponse:
        return error(409, "run", request.path_params.get("run_id"), str(problem), "GET /api/runs/{id} shows its status.")

    @app.exception_handler(Forbidden)
    async def forbidden(_: Request, refused: Forbidden) -> JSONResponse:
        problem = refused.problem
        return error(403, problem.field, problem.value, problem.message, problem.fix)

    @app.exception_handler(ConfigError)
    async def refused(_: Request, problem: ConfigError) -> JSONResponse:
        found = [vars(one) for one in problem.problems]
        return JSONResponse({"error": found[0], "problems": found}, 422)

    @app.exception_handler(RequestValidationError)
    async def malformed(_: Request, problem: RequestValidationError) -> JSONResponse:
        first = problem.errors()[0]
        place, *rest = (str(part) for part in first["loc"])
        field = "body" if place == "body" or not rest else rest[-1]
        given = str(first["input"]) if field != "body" else None
        return error(422, field, given, f"{first['msg']}.", "Correct it and send the request again.")

    async def database_away(_: Request, problem: Exception) -> JSONResponse:
        cause = getattr(problem, "orig", problem)
        return error(503, "database", None, f"The database does not answer: {cause}", "Try again in a moment.")

    for kind in UNREACHABLE:
        app.add_exception_handler(kind, database_away)

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
