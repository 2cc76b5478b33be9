"""REST routes of the installation: machines, disk space and services."""

from typing import Annotated, Any

from fastapi import Body, Query
from pydantic import BaseModel, ConfigDict, Field

from app.access import callers, changes
from app.documents import system as system_document
from app.web.rest.answers.form import answers
from app.web.rest.answers.system import RemovedMachine, System, UsedMachine
from app.web.rest.json_route import JsonRouter
from worker.disk.offers import Freeable

router = JsonRouter()


class Wanted(BaseModel):
    """The kinds of files to free."""

    model_config = ConfigDict(extra="forbid")

    kinds: list[Freeable] = Field(min_length=1)


@router.get("/api/system", **answers(System))
def show_system(
    wait: Annotated[
        bool, Query(description="Wait for the measurement, and for disk space that is being freed.")
    ] = False,
) -> dict[str, Any]:
    """Machines, devices, disk, queue and services (docs/system.md). The disk use is measured in the background."""
    return system_document.document(callers.current().may_change, wait=wait)


@router.post("/api/system/free", status_code=202, **answers(System, 202))
def free_disk(wanted: Annotated[Wanted, Body()]) -> dict[str, Any]:
    """Starts to free the `kinds` of files; `disk.freeing` of the answer and of `GET /api/system` is the progress."""
    changes.free_disk(wanted.kinds)
    return system_document.document(callers.current().may_change)


@router.post("/api/system/machines/{name}/remove", **answers(RemovedMachine))
def remove_machine(name: str) -> dict[str, Any]:
    """Removes a machine that no longer reports."""
    changes.remove_machine(name)
    return {"name": name, "removed": True}


@router.post("/api/system/machines/{name:path}/use", **answers(UsedMachine))
def use_machine(name: str) -> dict[str, Any]:
    """Takes back a machine that was put aside after failures."""
    changes.use_machine(name)
    return {"name": name, "put_aside": False}
