"""The REST API. Every error is {"error": {field, value, message, fix}}; a user error also lists all its `problems`."""

import io
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, FastAPI, Header, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from app.access import callers, changes
from app.access.permissions import Forbidden
from app.documents import system as system_document
from app.documents.run import brief, document
from app.web import log_diagnosis
from app.web.rest.openapi import RUN_BODY, raw_body
from app.web.security import error
from app.words import forecast as forecast_words
from app.words.datasets import data_problems
from training.config.fields import ConfigError, parse
from training.errors import DataError, Problem, UserError
from training.foreign.translate import import_text
from worker.datasets.datasets import DatasetInUse, DatasetNotFound
from worker.disk.background import AlreadyFreeing
from worker.disk.offers import Freeable
from worker.forecasts import forecast, hub_config, requested
from worker.runs import submit
from worker.store import database, runs, submissions
from worker.store.accounts import AccountNotFound
from worker.store.database import UNREACHABLE
from worker.store.evaluations import EvaluationActive, EvaluationEnded, EvaluationNotFound
from worker.store.listed import run_list
from worker.store.machines import MachineNotFound, MachineReports
from worker.store.measured import series
from worker.store.runs import NotEnded, NotResumable, NotRunning, RunNotFound
from worker.store.submissions import KeyReused, Submission
from worker.store.tables import Status
from worker.store.waiting import NotWaiting
from worker.supervision import run_diagnosis

_STATUS: dict[type[UserError], int] = {
    RunNotFound: 404,
    DatasetNotFound: 404,
    DatasetInUse: 409,
    AccountNotFound: 404,
    NotRunning: 409,
    NotResumable: 409,
    NotEnded: 409,
    NotWaiting: 409,
    EvaluationNotFound: 404,
    EvaluationEnded: 409,
    EvaluationActive: 409,
    MachineNotFound: 404,
    MachineReports: 409,
    AlreadyFreeing: 409,
    KeyReused: 409,
    Forbidden: 403,
}

Key = Annotated[
    str | None,
    Header(
        alias=submissions.HEADER,
        min_length=1,
        max_length=submissions.LONGEST_KEY,
        description="Any text of your choice. A repeated request with the same key answers the first run, for a day.",
    ),
]

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
    status: Status | None = None,
    search: str = "",
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
    offset: Annotated[int, Query(ge=0)] = 0,
) -> dict[str, Any]:
    """The runs that match, pinned ones first, then the newest, and how many there are in all."""
    with database.read() as session:
        found = run_list.listing(session=session, status=status, search=search, limit=limit, offset=offset)
        total = run_list.count(session=session, status=status, search=search)
    return {"runs": [brief(run) for run in found], "total": total}


@router.post("/api/runs", status_code=201, openapi_extra=RUN_BODY)
def create_run(values: Annotated[Any, Body()], key: Key = None) -> dict[str, Any]:
    """Queues a run; the body is a JSON object of settings (docs/configuration.md).

    Raises:
        ConfigError: settings are invalid; answered with 422 and all problems.
        KeyReused: the key was sent before with another body; answered with 409.
    """
    caller, config = callers.current(), parse(_settings(values))
    submission = Submission.of(key, caller.name, values) if key else None
    return _document(submit.submit(config, reach=caller.reach, owner=caller.name, submission=submission).id)


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
def diagnose_run(
    run_id: str, model: str | None = None, micro_batch: Annotated[int | None, Query(ge=1)] = None
) -> dict[str, Any]:
    """Why a run failed: cause, evidence and fix, from its log (docs/diagnosis.md)."""
    shape = log_diagnosis.dimensions(model)
    return run_diagnosis.of_run(run_id, dimensions=shape, micro_batch=micro_batch)


@router.post("/api/forecasts", response_model=None, openapi_extra=RUN_BODY)
def forecast_run(
    values: Annotated[Any, Body()],
    gpu: str | None = None,
    gpus: Annotated[int | None, Query(ge=1, le=1024)] = None,
    host_memory: Annotated[float | None, Query(ge=0.5)] = None,
    simulate: Annotated[bool, Query(description="Also simulate a training step, which takes up to a minute.")] = False,
    fetch_config: Annotated[bool, Query(description="First download the model's config.json from the hub.")] = False,
    form: Annotated[Literal["json", "text"], Query(description="json, or text for people.")] = "json",
) -> dict[str, Any] | PlainTextResponse:
    """The memory forecast of a run, and settings that fit. The body is a JSON object of settings; data is optional.

    Raises:
        ConfigError: settings, GPU or model are invalid; answered with 422.
    """
    typed = _settings(values)
    config = requested.on_gpus(parse({"data": "none"} | typed), gpus, typed)
    if problems := callers.current().reach.problems(config):
        raise ConfigError(problems)
    if fetch_config:
        hub_config.fetch(config.model, config.revision)
    found, card = requested.forecast(config, gpu, host_memory)
    simulated = requested.simulate(config, found, card) if simulate else None
    if form == "text":
        return PlainTextResponse(forecast_words.page(config, found, card, simulated))
    document = forecast.as_document(found)
    return document | {"simulated": simulated} if simulated else document


@router.post("/api/diagnoses", openapi_extra=raw_body("text/plain", "The log of the training run."))
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


@router.post("/api/imports", openapi_extra=raw_body("text/plain", "The text of the configuration."))
async def import_configuration(request: Request) -> dict[str, Any]:
    """A configuration of another program, in the body, as the settings of a run, key by key. Files that it names are not read.

    Raises:
        UserError: the body is a configuration of no known program; answered with 422.
    """
    text = (await request.body()).decode("utf-8", "replace")
    return await run_in_threadpool(lambda: import_text(text, None, "body").document())


@router.get("/api/system")
def show_system(
    wait: Annotated[
        bool, Query(description="Wait for the measurement, and for disk space that is being freed.")
    ] = False,
) -> dict[str, Any]:
    """Machines, devices, disk, queue and services (docs/system.md). The disk use is measured in the background."""
    return system_document.document(callers.current().may_change, wait=wait)


@router.post("/api/system/free", status_code=202)
def free_disk(kinds: Annotated[list[Freeable], Body(embed=True, min_length=1)]) -> dict[str, Any]:
    """Starts to free the `kinds` of files; `disk.freeing` of the answer and of `GET /api/system` is the progress."""
    changes.free_disk(kinds)
    return system_document.document(callers.current().may_change)


@router.post("/api/system/machines/{name}/remove")
def remove_machine(name: str) -> dict[str, Any]:
    """Removes a machine that no longer reports."""
    changes.remove_machine(name)
    return {"name": name, "removed": True}


@rest.api_route(
    "/api/{path:path}", methods=["GET", "POST", "PATCH", "DELETE"], response_model=None, include_in_schema=False
)
def unknown_path(path: str) -> JSONResponse:
    """The answer to unknown paths under /api/, which would otherwise reach the pages."""
    fix = "The page /api/docs lists all routes."
    return error(404, "path", f"/api/{path}", "is not part of the API.", fix)


def install_error_handlers(app: FastAPI) -> None:
    """Answers every user error with field, value, message and fix."""

    @app.exception_handler(UserError)
    async def refused(_: Request, refused: UserError) -> JSONResponse:
        found = data_problems(refused) if isinstance(refused, DataError) else refused.problems
        problems = [vars(problem) for problem in found]
        return JSONResponse({"error": problems[0], "problems": problems}, _STATUS.get(type(refused), 422))

    @app.exception_handler(RequestValidationError)
    async def malformed(_: Request, problem: RequestValidationError) -> JSONResponse:
        first = problem.errors()[0]
        place, *rest = (str(part) for part in first["loc"])
        whole = not rest or first["type"] == "json_invalid"
        field, value = (place, None) if whole else (rest[0], str(first["input"])[:200])
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
