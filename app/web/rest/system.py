"""REST routes of the installation: machines, disk space and services."""

from typing import Annotated

from fastapi import Body, Query
from pydantic import Field

from app.access import callers
from app.access.permissions import check_admin
from app.documents import system as documents
from app.documents.system import RemovedMachine, RunSizes, System, UsedMachine
from app.web.rest.routing import BodyForm, Ids, JsonRouter, Reading
from worker.choices import Freeable
from worker.disk import background
from worker.machine.sizes import size_of
from worker.settings import get_settings
from worker.store import database, machines, runs

router = JsonRouter()


class Wanted(BodyForm):
    """The kinds of files to free."""

    kinds: list[Freeable] = Field(min_length=1)


@router.get("/api/system")
def show_system(
    wait: Annotated[
        bool, Query(description="Wait for the measurement, and for disk space that is being freed.")
    ] = False,
) -> System:
    """Machines, devices, disk, queue and services (docs/system.md). The disk use is measured in the background."""
    return documents.document(callers.current().may_change, wait=wait)


@router.get("/api/system/runs")
def show_run_sizes(ids: Ids, session: Reading) -> RunSizes:
    """The disk use of these runs: what deleting them frees."""
    found = [runs.get(session=session, run_id=run_id).id for run_id in ids.split(",")]
    return RunSizes(runs={run_id: size_of(get_settings().runs_dir / run_id) for run_id in found})


@router.post("/api/system/free", status_code=202)
def free_disk(wanted: Annotated[Wanted, Body()]) -> System:
    """Starts to free the `kinds` of files; `disk.freeing` of the answer and of `GET /api/system` is the progress.

    Checkpoints are freed only of runs that the caller may change, and what belongs to the whole installation only for admins.
    """
    for kind in wanted.kinds:
        if not kind.of_runs:
            check_admin("kinds", kind.value)
    caller = callers.current()
    background.disk().free(tuple(wanted.kinds), caller.may_change, caller.name)
    return documents.document(caller.may_change)


@router.post("/api/system/measure", status_code=202)
def measure_disk() -> System:
    """Starts to measure the disk use again, unless it is being measured; `disk.measuring` is the progress."""
    background.disk().measured(again=True)
    return documents.document(callers.current().may_change)


@router.post("/api/system/machines/{name}/remove")
def remove_machine(name: str) -> RemovedMachine:
    """Removes a machine that no longer reports."""
    check_admin("machine", name)
    with database.write() as session:
        machines.remove(session=session, name=name)
    return RemovedMachine(name=name, removed=True)


@router.post("/api/system/machines/{name:path}/use")
def use_machine(name: str) -> UsedMachine:
    """Takes back a machine that was put aside after failures."""
    check_admin("machine", name)
    with database.write() as session:
        machines.uncordon(session=session, host=name)
    return UsedMachine(name=name, put_aside=False)
