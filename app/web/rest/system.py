"""REST routes of the installation: machines, disk space and services."""

from typing import Annotated, Any, Literal

from fastapi import Body, Query
from pydantic import Field

from app.access import callers, installation
from app.documents import system as system_document
from app.web.rest.routing import Answer, BodyForm, JsonRouter, answers, columns
from app.web.rest.users import AccountUse
from worker.disk import background
from worker.disk.offers import Freeable
from worker.machine.sizes import Size, size_of
from worker.services import Broker, DatabaseFacts
from worker.settings import get_settings
from worker.store import database, runs
from worker.store.tables import Cordon, Machine


class LeaseAnswer(Answer):
    """The run that holds a device, and when its lease was renewed and expires."""

    device: str
    run_id: str
    name: str
    owner: str
    phase: str
    step: int
    total_steps: int | None
    renewed_at: float | None
    expires_at: float | None


class DeviceAnswer(Answer):
    """A device as its worker measured it (null: it could not be measured), and the run that holds it."""

    name: str
    label: str
    memory_bytes: int
    memory_used_bytes: int | None
    temperature_celsius: int | None
    utilization: float | None = Field(description="a share of 1")
    power_watts: float | None
    power_limit_watts: float | None
    problem: str = Field(default="", description="why no run can use it, or empty")
    others: str = Field(default="", description="what uses it although Lathe does not, or empty")
    lease: LeaseAnswer | None


class FindingAnswer(Answer):
    """What a worker found wrong with its machine when it started, as `lathe doctor` says it, and what to do about it."""

    subject: str
    state: Literal["warning", "failed"]
    said: str
    cure: str


@columns(Machine, [name for name in Machine.model_fields if name not in ("devices", "findings")])
class MachineAnswer(Answer):
    """A machine as its worker reported it last. Times are seconds since the epoch, sizes bytes."""

    age_seconds: float
    state: Literal["ready", "overloaded", "draining", "stopped", "lost"]
    devices: list[DeviceAnswer]
    findings: list[FindingAnswer]


class PoolAnswer(Answer):
    """A partition of an engine: its machines by state, in the engine's words."""

    name: str
    machines: int
    states: dict[str, int]
    gpus: int
    time_limit: str
    is_default: bool


class EngineAnswer(Answer):
    """An engine with machines of its own, and how many runs wait and run there. `problem`: why it does not answer."""

    engine: str
    pools: list[PoolAnswer]
    waiting: int
    running: int
    problem: str
    age_seconds: float


@columns(Cordon, ("host", "since", "reason"))
class AsideAnswer(Answer):
    """A machine that runs on several machines avoid, since its second failure; `reason` is the latest one."""


class Oldest(Answer):
    """The run that has waited longest."""

    run_id: str
    name: str
    queued_at: float


class QueueCounts(Answer):
    """How many runs wait and run."""

    waiting: int
    running: int
    oldest: Oldest | None


class Progress(Answer):
    """How many items of a work are done."""

    done: int
    total: int


class RunOnDisk(Answer):
    """The disk use of a run."""

    id: str
    name: str
    owner: str
    status: str
    bytes: int
    files: int
    checkpoint_bytes: int


class Offer(Answer):
    """Files that the caller can free; `harmless`: they are made again when they are needed."""

    kind: Freeable
    harmless: bool
    bytes: int
    files: int


class Freeing(Progress):
    """The latest work of freeing: what it freed so far, and what it could not free."""

    kinds: list[Freeable]
    bytes: int
    files: int
    problems: list[str]
    ended_at: float | None


class Disk(Answer):
    """The disk use by kind, measured in the background; null before the first measurement."""

    measured_at: float | None
    measuring: Progress | None
    problem: str | None
    kinds: dict[str, Size] | None
    largest_runs: list[RunOnDisk]
    freeable: list[Offer]
    freeing: Freeing | None


class Deleted(Answer):
    """What the retention rules would delete now."""

    bytes: int
    files: int
    runs: int


class Retention(Answer):
    """The retention rules, null for a rule that is not set."""

    keep_checkpoints: int | None
    checkpoint_days: float | None
    archive_days: float | None
    store_cache_bytes: int | None
    would_delete: Deleted | None


class Version(Answer):
    """The version of a package in the server's environment, and those of the workers."""

    package: str
    here: str | None
    workers: list[str]


class System(Answer):
    """The installation. Times are seconds since the epoch by the database's clock, sizes bytes."""

    time: float
    machines: list[MachineAnswer]
    other_leases: list[LeaseAnswer]
    engines: list[EngineAnswer]
    queue: QueueCounts
    put_aside: list[AsideAnswer]
    accounts: list[AccountUse]
    disk: Disk
    retention: Retention
    database: DatabaseFacts
    broker: Broker
    versions: list[Version]
    limits: dict[str, Any]


class RunSizes(Answer):
    """The disk use of runs by their ids, measured now."""

    runs: dict[str, Size]


class RemovedMachine(Answer):
    """The machine that was removed."""

    name: str
    removed: Literal[True]


class UsedMachine(Answer):
    """The machine that runs on several machines use again."""

    name: str
    put_aside: Literal[False]


router = JsonRouter()


class Wanted(BodyForm):
    """The kinds of files to free."""

    kinds: list[Freeable] = Field(min_length=1)


@router.get("/api/system", **answers(System))
def show_system(
    wait: Annotated[
        bool, Query(description="Wait for the measurement, and for disk space that is being freed.")
    ] = False,
) -> dict[str, Any]:
    """Machines, devices, disk, queue and services (docs/system.md). The disk use is measured in the background."""
    return system_document.document(callers.current().may_change, wait=wait)


@router.get("/api/system/runs", **answers(RunSizes))
def show_run_sizes(ids: Annotated[str, Query(description="Ids of runs, separated by commas.")]) -> dict[str, Any]:
    """The disk use of these runs: what deleting them frees."""
    with database.read() as session:
        found = [runs.get(session=session, run_id=run_id).id for run_id in ids.split(",")]
    return {"runs": {run_id: vars(size_of(get_settings().runs_dir / run_id)) for run_id in found}}


@router.post("/api/system/free", status_code=202, **answers(System, 202))
def free_disk(wanted: Annotated[Wanted, Body()]) -> dict[str, Any]:
    """Starts to free the `kinds` of files; `disk.freeing` of the answer and of `GET /api/system` is the progress."""
    installation.free_disk(wanted.kinds)
    return system_document.document(callers.current().may_change)


@router.post("/api/system/measure", status_code=202, **answers(System, 202))
def measure_disk() -> dict[str, Any]:
    """Starts to measure the disk use again, unless it is being measured; `disk.measuring` is the progress."""
    background.disk().measured(again=True)
    return system_document.document(callers.current().may_change)


@router.post("/api/system/machines/{name}/remove", **answers(RemovedMachine))
def remove_machine(name: str) -> dict[str, Any]:
    """Removes a machine that no longer reports."""
    installation.remove_machine(name)
    return {"name": name, "removed": True}


@router.post("/api/system/machines/{name:path}/use", **answers(UsedMachine))
def use_machine(name: str) -> dict[str, Any]:
    """Takes back a machine that was put aside after failures."""
    installation.uncordon(name)
    return {"name": name, "put_aside": False}
