"""REST routes that edit, archive, delete and export runs, and change the queue."""

from typing import Annotated, Any, Literal

from fastapi import Body, Query, Response
from pydantic import Field

from app.access import changes
from app.documents import queue
from app.documents.results import export
from app.documents.run import document
from app.web.rest.routing import BodyForm, JsonRouter, answers, sends
from app.web.rest.run_answers import QueueAnswer, RunAnswer
from training.errors import UserError
from worker.store import database, run_list, runs, waiting
from worker.store.tables import Status

router = JsonRouter()

MOST_EXPORTED = 10_000


class Description(BodyForm):
    """What can be changed about a run; values that are left out stay."""

    name: str | None = None
    notes: str | None = None
    tags: list[str] | None = None
    add_tags: list[str] = Field([])
    remove_tags: list[str] = Field([])
    pinned: bool | None = None
    archived: bool | None = None
    held: bool | None = None
    priority: Literal["high", "normal", "low"] | None = None
    users: list[str] | None = Field(None, description="with whom it is shared; `*` stands for all users")


class Move(BodyForm):
    """The place of a run in the queue: before another one, or at the end with null."""

    before: str | None


class QueueChange(BodyForm):
    """Pauses the queue, or lets runs start again."""

    paused: bool


@router.patch("/api/runs/{run_id}", **answers(RunAnswer))
def describe_run(run_id: str, change: Annotated[Description, Body()]) -> dict[str, Any]:
    """Changes name, notes, tags, pin, archive, hold, priority or users of a run: all that the body names, or nothing."""
    priority = None if change.priority is None else waiting.PRIORITIES[change.priority]
    changes.edit(run_id, **change.model_dump(exclude={"priority"}), priority=priority)
    with database.read() as session:
        return document(session, run_id)


@router.delete("/api/runs/{run_id}", status_code=204)
def delete_run(run_id: str) -> None:
    """Deletes an ended run with its folder."""
    changes.delete(run_id)


@router.post("/api/runs/{run_id}/move", **answers(QueueAnswer))
def move_run(run_id: str, move: Annotated[Move, Body()]) -> dict[str, Any]:
    """Moves a queued run; answers the queue."""
    changes.move(run_id, move.before)
    return show_queue()


@router.get("/api/queue", **answers(QueueAnswer))
def show_queue() -> dict[str, Any]:
    """The waiting runs in the order in which they start."""
    with database.read() as session:
        return queue.document(session)


@router.post("/api/queue", **answers(QueueAnswer))
def change_queue(change: Annotated[QueueChange, Body()]) -> dict[str, Any]:
    """Pauses the queue for everybody, or lets runs start again; answers the queue."""
    changes.pause_queue(paused=change.paused)
    return show_queue()


@router.get("/api/runs.{form}", **sends("text/csv", "The runs in the form of the address."))
def export_runs(
    form: str,
    ids: str = "",
    search: str = "",
    status: Status | None = None,
    limit: Annotated[int, Query(ge=1, le=MOST_EXPORTED)] = MOST_EXPORTED,
) -> Response:
    """Runs as CSV, JSON or Markdown: those named by `ids`, separated by commas, else those that match `search` and `status`.

    Raises:
        UserError: there is no such form; answered with 422.
    """
    if form not in export.MEDIA:
        raise UserError("format", form, "is not a form of export.", f"Use {', '.join(export.MEDIA)}.")
    with database.read() as session:
        if wanted := [one.strip() for one in ids.split(",") if one.strip()]:
            found = [runs.get(session=session, run_id=run_id) for run_id in wanted]
        else:
            found = run_list.listing(session=session, status=status, search=search, limit=limit)
    ending = {"markdown": "md"}.get(form, form)
    headers = {"Content-Disposition": f'attachment; filename="runs.{ending}"'}
    return Response(export.written(found, form), media_type=export.MEDIA[form], headers=headers)
