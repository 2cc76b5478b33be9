"""Disk use, what can be freed, and the retention rules. Pure."""

from collections.abc import Callable

from app.documents import Document
from worker.choices import Freeable
from worker.disk import freeing
from worker.disk.background import Measured
from worker.disk.usage import RunUse, Usage
from worker.machine.sizes import Size
from worker.settings import get_settings
from worker.store import sight


class Progress(Document):
    """How many items of a work are done."""

    done: int
    total: int


class RunOnDisk(Document):
    """The disk use of a run."""

    id: str
    name: str
    owner: str
    status: str
    bytes: int
    files: int
    checkpoint_bytes: int


class Offer(Document):
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


class Disk(Document):
    """The disk use by kind, measured in the background; null before the first measurement."""

    measured_at: float | None
    measuring: Progress | None
    problem: str | None
    kinds: dict[str, Size] | None
    largest_runs: list[RunOnDisk]
    freeable: list[Offer]
    freeing: Freeing | None


class Deleted(Document):
    """What the retention rules would delete now."""

    bytes: int
    files: int
    runs: int


class Retention(Document):
    """The retention rules, null for a rule that is not set."""

    keep_checkpoints: int | None
    checkpoint_days: float | None
    archive_days: float | None
    store_cache_bytes: int | None
    would_delete: Deleted | None


def document(measured: Measured, freed: freeing.Progress | None, may_change: Callable[[str], bool]) -> Disk:
    """The disk use, what the caller can free, and the latest work of freeing; `measuring` counts folders of runs."""
    usage, progress = measured.usage, measured.progress
    return Disk(
        measured_at=usage.measured_at if usage else None,
        measuring=Progress(done=progress[0], total=progress[1]) if progress else None,
        problem=measured.problem,
        kinds={kind.value: size for kind, size in usage.kinds.items()} if usage else None,
        largest_runs=[_run(use) for use in usage.runs if sight.user() in (None, use.owner)] if usage else [],
        freeable=_freeable(usage, may_change) if usage else [],
        freeing=_freeing(freed) if freed else None,
    )


def retention_document(measured: Measured) -> Retention:
    """The retention rules, and what they would delete now."""
    settings, usage = get_settings(), measured.usage
    return Retention(
        keep_checkpoints=settings.keep_checkpoints,
        checkpoint_days=settings.checkpoint_days,
        archive_days=settings.archive_days,
        store_cache_bytes=settings.store_cache_bytes,
        would_delete=Deleted(**vars(usage.retention), runs=usage.retention_runs) if usage else None,
    )


def _run(use: RunUse) -> RunOnDisk:
    values = {name: getattr(use, name) for name in ("id", "name", "owner", "status")}
    return RunOnDisk(**values, **vars(use.size), checkpoint_bytes=use.checkpoints.bytes)


def _freeable(usage: Usage, may_change: Callable[[str], bool]) -> list[Offer]:
    """What the caller can free, by kind; kinds with nothing to free are included."""
    offers = []
    for kind in Freeable:
        sizes = (size for (one, owner), size in usage.freeable.items() if one is kind and may_change(owner))
        offers.append(Offer(kind=kind, harmless=kind.harmless, **vars(sum(sizes, Size()))))
    return offers


def _freeing(progress: freeing.Progress) -> Freeing:
    return Freeing(
        kinds=list(progress.kinds),
        done=progress.done,
        total=progress.total,
        **vars(progress.freed),
        problems=list(progress.problems) if sight.user() is None else [],  # they name runs
        ended_at=progress.ended_at,
    )
