"""Disk use, what can be freed, and the retention rules as dictionaries. Pure."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from worker.disk.background import Measured
from worker.disk.freeing import Progress
from worker.disk.offers import Freeable
from worker.disk.usage import RunUse, Usage
from worker.machine.sizes import Size
from worker.settings import get_settings
from worker.store import sight


def document(measured: Measured, freed: Progress | None, may_change: Callable[[str], bool]) -> dict[str, Any]:
    """The disk use by kind, the largest runs, what the caller can free, and the latest work of freeing.

    `kinds` is None before the first measurement; `measuring` tells how many folders of runs are done while one runs.
    """
    usage, progress = measured.usage, measured.progress
    return {
        "measured_at": usage.measured_at if usage else None,
        "measuring": {"done": progress[0], "total": progress[1]} if progress else None,
        "problem": measured.problem,
        "kinds": {kind.value: asdict(size) for kind, size in usage.kinds.items()} if usage else None,
        "largest_runs": [_run(use) for use in usage.runs if sight.user() in (None, use.owner)] if usage else [],
        "freeable": _freeable(usage, may_change) if usage else [],
        "freeing": _freeing(freed) if freed else None,
    }


def retention_document(measured: Measured) -> dict[str, Any]:
    """The retention rules (None for a rule that is not set), and what they would delete now."""
    settings, usage = get_settings(), measured.usage
    deleted = asdict(usage.retention) | {"runs": usage.retention_runs} if usage else None
    return {
        "keep_checkpoints": settings.keep_checkpoints,
        "checkpoint_days": settings.checkpoint_days,
        "archive_days": settings.archive_days,
        "store_cache_bytes": settings.store_cache_bytes,
        "would_delete": deleted,
    }


def _run(use: RunUse) -> dict[str, Any]:
    values = {name: getattr(use, name) for name in ("id", "name", "owner", "status")}
    return values | asdict(use.size) | {"checkpoint_bytes": use.checkpoints.bytes}


def _freeable(usage: Usage, may_change: Callable[[str], bool]) -> list[dict[str, Any]]:
    """What the caller can free, by kind; kinds with nothing to free are included."""
    found = []
    for kind in Freeable:
        sizes = (size for (one, owner), size in usage.freeable.items() if one is kind and may_change(owner))
        found.append({"kind": kind.value, "harmless": kind.harmless, **asdict(sum(sizes, Size()))})
    return found


def _freeing(progress: Progress) -> dict[str, Any]:
    return {
        "kinds": [kind.value for kind in progress.kinds],
        "done": progress.done,
        "total": progress.total,
        **asdict(progress.freed),
        "problems": list(progress.problems) if sight.user() is None else [],  # they name runs
        "ended_at": progress.ended_at,
    }
