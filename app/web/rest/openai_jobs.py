"""OpenAI's API for fine-tuning: a job is a run."""

from typing import Annotated, Any

from fastapi import APIRouter, Body, Query

from app.access import callers
from app.access.permissions import check_change
from app.documents import fine_tuning as documents
from app.format.forecast_text import verdict
from app.web.rest.openai_files import PROMPTS_ALONE, is_prompts, stored
from app.web.rest.routing import JsonRouter, Key
from training.config.fields import ConfigError, parse
from training.config.run_config import Changes, RunConfig, stepped_down
from training.errors import Conflict, NotFound, Problem, UserError
from training.template_check.findings import ERROR
from worker import celery_app
from worker.allowed_paths import CODE_SETTING, STARTER, folders_in
from worker.fine_tuning import job as openai_job
from worker.fine_tuning.job import PARAMETERS, FineTuningJob
from worker.forecasts import leaks, run_forecast
from worker.runs import requests, rows_check, submit
from worker.runs.checks import adapter_problems
from worker.settings import get_settings
from worker.store import database, runs, waiting
from worker.store.submissions import Submission
from worker.store.tables import Run, Status

Json = dict[str, Any]
router: APIRouter = JsonRouter(include_in_schema=False)
After = Annotated[str | None, Query(max_length=200)]
Limit = Annotated[int, Query(ge=1, le=1000)]
_STARTER = "starter"


@router.post("/v1/fine_tuning/jobs")
def create_job(body: Annotated[FineTuningJob, Body()], key: Key = None) -> Json:
    """Checks the files of a job, and queues its run."""
    caller = callers.current()
    submission = Submission.of(key, caller.name, body.model_dump()) if key else None
    try:
        config = _continuing(parse(_settings(body)), body)
        kept = {"job": body.model_dump(exclude_unset=True), "notes": _notes(config)}
        run = submit.submit(config, allowed=caller.allowed, owner=caller.name, submission=submission, fine_tuning=kept)
    except ConfigError as refused:
        raise ConfigError([_of_job(problem, body) for problem in refused.problems]) from None
    return documents.job(run)


def _settings(body: FineTuningJob) -> Json:
    """The settings of a job's run.

    Raises:
        UserError: a parameter is wrong; the field is its name in the job.
    """
    graded = body.method.reinforcement if body.method else None
    if graded:
        check_code(graded.grader)
    data = stored(body.training_file, "training_file")
    given = {"data": data.id} | _model(body.model) | openai_job.settings_of(body)
    if body.validation_file:
        given["validation_data"] = stored(body.validation_file, "validation_file").id
    if graded and is_prompts(data) and not data.columns_map:
        given = {"columns": PROMPTS_ALONE} | given
    return given


def _continuing(config: RunConfig, body: FineTuningJob) -> RunConfig:
    """The configuration with the settings of the adapter that it continues, as far as the job does not give them."""
    if not config.init_adapter:
        return config
    changes: Changes = {}
    for problem in adapter_problems(config, callers.settled(config).adapter):
        changes |= problem.changes or {}
    return stepped_down(config, {name: value for name, value in changes.items() if name not in body.lathe})


def check_code(grader: Json) -> None:
    """Refuses a grader with code before anything reads it, unless the caller runs the server. Raises ConfigError."""
    inner = grader.get("graders")
    for one in (grader, *(inner.values() if isinstance(inner, dict) else ())):
        if isinstance(one, dict) and "source" in one:
            callers.check_sent({CODE_SETTING: one["source"]})


def _model(name: str) -> Json:
    """The settings that a model's name gives: a name that the operator maps, the starter, an earlier result, a folder or hub id.

    Raises:
        NotFound: there is no such model here.
    """
    mapped = get_settings().openai_model_names
    if name in mapped or name == _STARTER:
        return {"model": mapped.get(name, str(STARTER))}
    if found := _result(name):
        return {"model": found.settings["model"], "method": found.settings["method"], "init_adapter": name}
    if "/" in name:
        return {"model": name}
    known = ", ".join([*mapped, _STARTER, *map(str, folders_in(get_settings().model_folders))])
    fix = f"Give one of {known}; a hub id; or a fine-tuned model."
    raise NotFound("model", name, "is not a model that this server trains.", fix)


def _result(name: str) -> Run | None:
    """The run whose adapter has this name; None if there is none."""
    with database.read() as session:
        try:
            run = runs.get(session=session, run_id=name)
        except runs.RunNotFound:
            return None
    return run if run.has_result and run.is_configured and run.asked.method.adapts else None


def _notes(config: RunConfig) -> list[str]:
    """What a job's events begin with: what was found in its rows, and the forecast."""
    caller, found = callers.current(), list[str]()
    try:
        for checked in rows_check.check_rows(config, caller.allowed):
            found += [
                f"{checked.name}: {one.sentence} {one.fix}" for one in checked.report.findings if one.severity != ERROR
            ]
    except UserError:
        pass  # of a task whose rows are not rendered, or said when the run is checked
    settled = callers.settled(config)
    leaked = leaks.of_run(settled.readable)
    if leaked and leaked.leaked:
        found.append(f"{leaked.leaked:,} of {leaked.rows:,} held-out rows are near duplicates of training rows.")
    memory = run_forecast.verdict(settled, settled.machine)
    return [*found, f"Memory forecast: {verdict(memory)}."] if memory else found


def _of_job(problem: Problem, body: FineTuningJob) -> Problem:
    """The problem of a setting as that of the parameter which gave it."""
    if problem.field in body.lathe:
        return Problem(f"lathe.{problem.field}", problem.value, problem.message, problem.fix)
    name = PARAMETERS.get(problem.field, problem.field)
    if name.startswith("hyperparameters.") and body.method:
        name = f"method.{body.method.type}.{name}"
    return Problem(name, problem.value, problem.message, problem.fix)


@router.get("/v1/fine_tuning/jobs")
def list_jobs(after: After = None, limit: Limit = 20) -> Json:
    """The jobs, the newest first."""
    with database.read() as session:
        return documents.jobs(session, after, limit)


@router.get("/v1/fine_tuning/jobs/{job_id}")
def show_job(job_id: str) -> Json:
    """A job."""
    with database.read() as session:
        return documents.job(documents.job_run(session, job_id))


@router.get("/v1/fine_tuning/jobs/{job_id}/events")
def list_events(job_id: str, after: After = None, limit: Limit = 20) -> Json:
    """What happened in a job, and its measured values, the newest first."""
    with database.read() as session:
        found = documents.events(session, documents.job_run(session, job_id))
    return documents.page_of(found, after, limit, lambda event: str(event["id"]), dict)


@router.get("/v1/fine_tuning/jobs/{job_id}/checkpoints")
def list_checkpoints(job_id: str, after: After = None, limit: Limit = 10) -> Json:
    """The checkpoints of a job that can be served, the newest first."""
    with database.read() as session:
        found = documents.checkpoints(session, documents.job_run(session, job_id))
    return documents.page_of(found, after, limit, lambda checkpoint: str(checkpoint["id"]), dict)


@router.post("/v1/fine_tuning/jobs/{job_id}/cancel")
def cancel_job(job_id: str) -> Json:
    """Stops a job; it keeps its checkpoints."""
    run = _own(job_id)
    requests.stop(run.id)
    return show_job(job_id)


@router.post("/v1/fine_tuning/jobs/{job_id}/pause")
def pause_job(job_id: str) -> Json:
    """Pauses a job: it saves a checkpoint and waits."""
    run = _own(job_id)
    with database.write() as session:
        runs.pause(session=session, run_id=run.id)
    return show_job(job_id)


@router.post("/v1/fine_tuning/jobs/{job_id}/resume")
def resume_job(job_id: str) -> Json:
    """Continues a paused job from its checkpoint."""
    run = _own(job_id)
    with database.write() as session:
        current = runs.locked(session=session, run_id=run.id)
        if not current.held:
            message = f"is {documents.job(current)['status']}, not paused."
            raise Conflict("fine_tuning_job_id", job_id, message, "Resume a job that is paused.")
        if current.status is Status.QUEUED:
            waiting.hold(session=session, run_id=run.id, held=False)
        else:  # it is still saving
            current.held = False
    celery_app.notify(run.id)
    return show_job(job_id)


def _own(job_id: str) -> Run:
    with database.read() as session:
        run = documents.job_run(session, job_id)
    check_change("fine_tuning_job_id", job_id, run.owner)
    return run
