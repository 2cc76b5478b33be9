"""The current facts of a run as texts: what the top of its page shows, at first from the page, then from its stream."""

import time
from typing import Any

from app.format import numbers
from app.format.runs import eta
from training.units import NONE, byte_size
from worker.store.tables import Run, Status

Queue = dict[str, Any] | None


def facts(run: Run, queue: Queue, speed: float | None) -> dict[str, Any]:
    """Texts by name. `share` is the share of the work done (None: unknown), `since` the start of a running run and `until` its
    expected end, in seconds since the epoch.

    `speed` is in tokens per second: the latest of a run that has not ended, else the mean.
    """
    left = eta(run.model_dump(include={"seconds_per_step", "total_steps", "step"}))
    running = run.status is Status.RUNNING
    return {
        "status": run.status.value,
        "phase": phase(run, queue),
        "step": f"{run.step:,} of {run.total_steps:,}" if run.total_steps else NONE,
        "loss": "not finite" if run.status is Status.DIVERGED else numbers.decimal(run.final_loss),
        "speed_label": "Mean speed" if run.status.ended else "Speed",
        "speed": numbers.rate(speed, "tokens"),
        "since": run.started_at if running else None,
        "elapsed": numbers.duration(_seconds(run)),
        "devices": ", ".join(run.devices) or NONE,
        "memory": memory(run),
        "until": round(time.time() + left) if running and left is not None else None,
        "share": share(run),
    }


def _seconds(run: Run) -> float | None:
    """From the first start to the end; None before the end."""
    return run.finished_at - run.started_at if run.started_at and run.finished_at else None


def phase(run: Run, queue: Queue) -> str:
    """What the run does at present, with the progress of phases that have no steps."""
    if run.status is Status.QUEUED:
        if not queue:
            return "queued"
        if queue.get("job") and not queue["quota"]:
            return str(queue["job"])
        running = f", {numbers.plural(queue['running'], 'run')} running" if queue["running"] else ""
        why = queue["quota"] or queue["overloaded"]
        return f"position {queue['place']} of {queue['waiting']} in the queue{running}{f'. {why}' if why else ''}"
    if run.status.ended:
        return run.status.value
    if run.request == "stop":
        return "stopping: saving a checkpoint"
    counted = f" {run.phase_done or 0:,} of {run.phase_total:,}" if run.phase_total else ""
    return f"{run.phase or 'starting'}{counted}"


def memory(run: Run) -> str:
    """The highest memory of a rank so far, and the limit if it has one: "3.1 GiB of 80.0 GiB"."""
    limit = (run.forecast or {}).get("limit_bytes")
    return byte_size(run.peak_bytes) + (f" of {byte_size(limit)}" if limit and run.peak_bytes is not None else "")


def share(run: Run) -> float | None:
    """The share of the work done, 0 to 1: of the steps, or of a phase before training; None if it is unknown."""
    if run.status is Status.RUNNING and run.phase_total and run.phase != "training":
        return round(min((run.phase_done or 0) / run.phase_total, 1.0), 3)
    if run.total_steps:
        return round(min(run.step / run.total_steps, 1.0), 3)
    return None if run.status is Status.RUNNING else 0.0
