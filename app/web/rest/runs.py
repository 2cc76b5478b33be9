"""REST routes of runs and the queue: list, start, show, edit, stop, resume, delete and export."""

from typing import Annotated, Any, Literal

import anyio
import anyio.to_thread
from fastapi import Body, Query, Response
from pydantic import Field

from app.access import callers, sharing
from app.access.permissions import Forbidden, OwnRun, check_admin
from app.documents import Document, queue
from app.documents.queue import QueueAnswer
from app.documents.results import export
from app.documents.run import RunAnswer, RunList, SeriesList, brief, document, grouped
from app.web.rest.openapi import RUN_BODY
from app.web.rest.routing import (
    MOST_NAMED,
    BodyForm,
    Group,
    Ids,
    JsonRouter,
    Key,
    Limit,
    Offset,
    Reading,
    SearchText,
    ShortText,
    Step,
    sends,
    settings_object,
)
from training.config.choices import Strategy
from training.config.data_sets import FIELDS
from training.config.fields import parse
from training.config.yaml_file import read_config
from training.errors import UserError
from worker import celery_app
from worker.choices import Priority
from worker.datasets import datasets
from worker.runs import requests, submit
from worker.settings import ROOT
from worker.store import database, run_list, runs, series, waiting
from worker.store.sight import ANOTHER_RUN
from worker.store.submissions import Submission
from worker.store.tables import Run, Status
from worker.store.tables.shapes import LONGEST_NAME, LONGEST_NOTES, Tag

MOST_EXPORTED = 10_000
_SAMPLE = ROOT / "static" / "starter" / "quickstart.yaml"

_HEALTH = anyio.CapacityLimiter(2)
"""Threads of its own for /healthz, which answers while requests use all others."""

router = JsonRouter()


class Health(Document):
    """The server and its database work."""

    status: Literal["ok"]


Tags = Annotated[list[Tag], Field(max_length=100)]


class Description(BodyForm):
    """What can be changed about a run; values that are left out stay."""

    name: str | None = Field(None, max_length=LONGEST_NAME)
    notes: str | None = Field(None, max_length=LONGEST_NOTES)
    tags: Tags | None = None
    add_tags: Tags = Field([])
    remove_tags: Tags = Field([])
    pinned: bool | None = None
    archived: bool | None = None
    held: bool | None = None
    priority: Priority | None = None
    users: list[ShortText] | None = Field(
        None, max_length=MOST_NAMED, description="with whom it is shared; `*` stands for all users"
    )


class Move(BodyForm):
    """The place of a run in the queue: before another one, or at the end with null."""

    before: ShortText | None


class QueueChange(BodyForm):
    """Pauses the queue, or lets runs start again."""

    paused: bool


@router.get("/healthz")
async def health() -> Health:
    """Answers {"status": "ok"} if the database is reachable."""
    await anyio.to_thread.run_sync(_ask_database, limiter=_HEALTH)
    return Health(status="ok")


def _ask_database() -> None:
    with database.read() as session:
        database.now(session=session)


@router.get("/api/runs")
def list_runs(
    session: Reading,
    status: Status | None = None,
    search: SearchText = "",
    group: Group = "",
    limit: Limit = 200,
    offset: Offset = 0,
) -> RunList:
    """The runs that match, pinned ones first, then the newest, and how many there are in all; or by groups."""
    query = run_list.Query(status=status, search=search, limit=limit, offset=offset)
    total = run_list.count(session=session, query=query)
    if not group:
        return RunList(runs=[brief(run) for run in run_list.listing(session=session, query=query)], total=total)
    matching, groups = grouped(session, group, query)
    return RunList(runs=[brief(run) for run in matching], total=total, groups=groups)


@router.post("/api/runs", status_code=201, openapi_extra=RUN_BODY)
def create_run(
    values: Annotated[Any, Body()],
    key: Key = None,
    parent: Annotated[str | None, Query(max_length=200, description="The run of which this one is a clone.")] = None,
) -> RunAnswer:
    """Queues a run; the body is a JSON object of settings (docs/configuration.md)."""
    origin = _id(parent) if parent else None
    caller, config = callers.current(), parse(settings_object(values))
    body = {"parent": origin, "settings": values} if origin else values
    submission = Submission.of(key, caller.name, body) if key else None
    return _run(
        submit.submit(config, allowed=caller.allowed, owner=caller.name, parent_id=origin, submission=submission).id
    )


@router.post("/api/runs/sample", status_code=201)
def create_sample_run() -> RunAnswer:
    """Queues the sample run: the starter model learns to write orders as JSON. Its data are stored as data sets."""
    caller, config = callers.current(), read_config(_SAMPLE)
    stored = {
        name: datasets.add_file(path=ROOT / path, name=(ROOT / path).name, owner=caller.name).id
        for name in FIELDS
        if (path := getattr(config, name))
    }
    config = config.model_copy(update={**stored, "model": str(ROOT / config.model)})
    return _run(submit.submit(config, allowed=caller.allowed, owner=caller.name).id)


@router.get("/api/runs/{run_id}")
def show_run(run_id: str, session: Reading) -> RunAnswer:
    """One run with its events, summary and latest metrics."""
    return document(session, run_id)


@router.get("/api/runs/{run_id}/series")
def show_series(
    session: Reading,
    run_id: str,
    names: Annotated[str, Query(max_length=4000, description="Metrics, separated by commas.")] = "",
    points: Annotated[int, Query(ge=1, le=10_000)] = 400,
    first_step: Step = None,
    last_step: Step = None,
) -> SeriesList:
    """The run's metrics with about `points` points each; `names` are separated by commas, empty for all."""
    wanted = [name.strip() for name in names.split(",") if name.strip()] or None
    run = runs.get(session=session, run_id=run_id)
    lines = series.series(
        session=session, run_id=run.id, names=wanted, points=points, first_step=first_step, last_step=last_step
    )
    return SeriesList(series=lines)


@router.post("/api/runs/{run_id}/stop")
def stop_run(own: OwnRun) -> RunAnswer:
    """Requests a run to stop: it saves a checkpoint after the current step and exits."""
    requests.stop(own)
    return _run(own)


@router.post("/api/runs/{run_id}/resume")
def resume_run(
    own: OwnRun,
    step_down: bool = False,
    strategy: Strategy | None = None,
    num_processes: Annotated[int | None, Query(ge=1, le=1024)] = None,
) -> RunAnswer:
    """Resumes a failed, stopped or diverged run from its last complete checkpoint; `step_down` applies the settings proposed after
    an out-of-memory error. With another `strategy` or number of processes the checkpoint is divided anew, and
    gradient_accumulation_steps changes so that the global batch size stays. Of a finished run, what was not done after its
    training (`undone`) is done.
    """
    allowed = callers.current().allowed
    requests.resume(own, step_down=step_down, strategy=strategy, num_processes=num_processes, allowed=allowed)
    return _run(own)


@router.patch("/api/runs/{run_id}")
def describe_run(own: OwnRun, change: Annotated[Description, Body()]) -> RunAnswer:
    """Changes name, notes, tags, pin, archive, hold, priority or users of a run: all that the body names, or nothing."""
    priority = None if change.priority is None else waiting.PRIORITIES[change.priority]
    if priority is not None and priority > waiting.NORMAL:
        check_admin("priority", change.priority, "lets the run start before those of others.")
    with database.write() as session:
        run, tags = runs.locked(session=session, run_id=own), change.tags
        if change.add_tags or change.remove_tags:
            removed = {tag.strip().lower() for tag in change.remove_tags}
            tags = [*(tag for tag in (run.tags if tags is None else tags) if tag not in removed), *change.add_tags]
        runs.describe(
            session=session, run_id=own, name=change.name, notes=change.notes, tags=tags, pinned=change.pinned
        )
        if change.archived is not None:
            runs.set_archived(session=session, run_id=own, archived=change.archived)
        if change.held is not None:
            waiting.hold(session=session, run_id=own, held=change.held)
        if priority is not None:
            waiting.set_priority(session=session, run_id=own, priority=priority)
        if change.users is not None:
            sharing.store(session, "run", own, change.users)
    if change.held is False:
        celery_app.notify(own)
    return _run(own)


@router.delete("/api/runs/{run_id}", status_code=204)
def delete_run(own: OwnRun) -> None:
    """Deletes an ended run with its folder."""
    with database.write() as session:
        runs.delete(session=session, run_id=own)


@router.post("/api/runs/{run_id}/move")
def move_run(own: OwnRun, move: Annotated[Move, Body()]) -> QueueAnswer:
    """Moves a queued run; answers the queue."""
    with database.write() as session:
        _check_passing(own, waiting.move(session=session, run_id=own, before=move.before))
    return _queue()


@router.get("/api/queue")
def show_queue(session: Reading) -> QueueAnswer:
    """The waiting runs in the order in which they start."""
    return queue.document(session)


@router.post("/api/queue")
def change_queue(change: Annotated[QueueChange, Body()]) -> QueueAnswer:
    """Pauses the queue for everybody, or lets runs start again; answers the queue."""
    check_admin("queue", None, "is paused and resumed by an admin.")
    with database.write() as session:
        if change.paused:
            waiting.pause(session=session, by=callers.current().name)
        else:
            waiting.unpause(session=session)
        queued = [] if change.paused else waiting.startable(session=session)
    if queued:
        celery_app.notify(queued[0].id)
    return _queue()


@router.get("/api/runs.{form}", **sends("text/csv", "The runs in the form of the address."))
def export_runs(
    session: Reading,
    form: str,
    ids: Ids = "",
    search: SearchText = "",
    status: Status | None = None,
    limit: Annotated[int, Query(ge=1, le=MOST_EXPORTED)] = MOST_EXPORTED,
) -> Response:
    """Runs as CSV, JSON or Markdown: those named by `ids`, separated by commas, else those that match `search` and `status`."""
    if form not in export.MEDIA:
        raise UserError("format", form, "is not a form of export.", f"Use {', '.join(export.MEDIA)}.")
    if wanted := [run_id.strip() for run_id in ids.split(",") if run_id.strip()]:
        exported = [runs.get(session=session, run_id=run_id) for run_id in wanted]
    else:
        exported = run_list.listing(session=session, query=run_list.Query(status, search, limit=limit))
    ending = {"markdown": "md"}.get(form, form)
    headers = {"Content-Disposition": f'attachment; filename="runs.{ending}"'}
    return Response(export.written(exported, form), media_type=export.MEDIA[form], headers=headers)


def _check_passing(run_id: str, passed: list[Run]) -> None:
    """Checks that a run which was moved passed no run of others. Raises Forbidden if it did."""
    caller = callers.current()
    if others := [run for run in passed if not caller.may_change(run.owner)]:
        first = f"{others[0].name!r} of {others[0].owner}" if caller.sees_all else ANOTHER_RUN
        raise Forbidden("run", run_id, f"would start before {first}.", "Ask an admin to move it.")


def _id(run_id: str) -> str:
    with database.read() as session:
        return runs.get(session=session, run_id=run_id).id


def _run(run_id: str) -> RunAnswer:
    with database.read() as session:
        return document(session, run_id)


def _queue() -> QueueAnswer:
    with database.read() as session:
        return queue.document(session)
