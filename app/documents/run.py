"""A run as a plain dictionary: what `--json` prints and what the readable page is made of. Read-only."""

import time
from typing import Any

from pydantic import ValidationError
from sqlmodel import Session

from app.format.forecast import misfit
from training.config.choices import EngineName
from training.config.run_config import RunConfig
from training.errors import UserError
from worker.engines.local import placement
from worker.engines.slurm.jobs import waiting_sentence
from worker.forecasts import run_forecast
from worker.machine import overload
from worker.runs.settle import settle
from worker.store import database, history, machines, runs, series, waiting
from worker.store.jobs import submitted_id
from worker.store.quotas import DeviceQuotas
from worker.store.tables import Run, Status, damaged

BRIEF = (
    "id", "name", "owner", "status", "phase", "step", "total_steps", "attempt", "created_at", "queued_at", "started_at",
    "finished_at", "devices", "job_id",
    "tags", "pinned", "archived_at", "sweep_id", "trial", "pause_at", "held", "priority", "final_loss", "best_loss", "diverged",
    "peak_bytes", "seconds_per_step",
)  # fmt: skip
WHOLE = (
    *BRIEF, "config", "summary", "error", "plan", "stepped_down", "forecast", "request", "phase_done", "phase_total", "dataset_id",
    "notes", "fingerprints", "parent_id", "job",
)  # fmt: skip
ATTEMPT = (
    "number",
    "host",
    "devices",
    "started_at",
    "ended_at",
    "outcome",
    "exit_code",
    "reason",
    "stepped_down",
    "out_of_memory",
)
EVENT = ("time", "attempt", "kind", "level", "step", "message")


def brief(run: Run) -> dict[str, Any]:
    """A run as `lathe runs` lists it. Times are seconds since the epoch, sizes bytes."""
    asked = {name: run.config.get(name) for name in ("model", "data", "method")}
    return (
        run.model_dump(mode="json", include=set(BRIEF))
        | asked
        | {"job_id": submitted_id(run), "damaged": damaged(run), "differs": run.differs}
    )


def document(session: Session, run_id: str) -> dict[str, Any]:
    """What is known of a run: its fields, `attempts` and `events` oldest first, `latest` (newest value of each metric), `queue`.

    `memory` compares the forecast with what each rank measured. `summary` is as the training program reported it, null until it
    ended, and `memory` empty; `queue` is the run's place among the waiting,
    null where it does not wait. Times are seconds since the epoch, sizes bytes.

    Raises:
        RunNotFound: no run has this id.
    """
    run = runs.get(session=session, run_id=run_id)
    events, queued = history.events(session=session, run_id=run.id), place(session, run)
    latest = series.latest(session=session, run_id=run.id)
    return run.model_dump(mode="json", include=set(WHOLE)) | {
        "job_id": submitted_id(run),
        "damaged": damaged(run),
        "differs": run.differs,
        "attempts": [
            one.model_dump(mode="json", include=set(ATTEMPT)) for one in runs.attempts(session=session, run_id=run.id)
        ],
        "events": [event.model_dump(mode="json", include=set(EVENT)) for event in events],
        "latest": {name: value for (name, rank), (_, value) in latest.items() if rank < 0},
        "memory": run_forecast.compared(run.forecast, run.summary),
        "queue": queued and queued | {"memory": _misfit(run)},
    }


def _misfit(run: Run) -> str:
    """Why a queued run is not expected to fit in this machine's memory; empty if it is, or if it is unknown."""
    try:
        settled = settle(RunConfig.model_validate(run.settings))
        return misfit(run_forecast.verdict(settled, settled.machine), settled.config)
    except (ValidationError, UserError):  # a damaged row
        return ""


def place(session: Session, run: Run) -> dict[str, Any] | None:
    """Where a queued run stands: `place` (1 is next) of `waiting`, and how many are `running`. None for other runs.

    `overloaded` names the machines that start nothing at present, with the reasons; mostly empty. `job` says what the run's job
    waits for, if an engine has queued it. `quota` says how its owner's quota keeps it from starting, and is mostly empty.
    """
    if run.status is not Status.QUEUED:
        return None
    ids = [other.id for other in waiting.waiting(session=session)]
    position = ids.index(run.id) + 1 if run.id in ids else len(ids) + 1
    running = runs.with_status(session=session, status=Status.RUNNING)
    numbers = {"place": position, "waiting": max(len(ids), position), "running": len(running)}
    job_id = submitted_id(run)
    job = waiting_sentence(job_id, run.job, time.time()) if job_id and run.job else ""
    engine = run.engine
    if engine is EngineName.SLURM and (problem := machines.engine_problem(session=session, name=engine)):
        job = f"Waits for Slurm, which does not answer: {problem}"
    if not job and run.config.get("num_machines", 1) > 1 and engine is EngineName.LOCAL:
        job = placement.reason_to_wait(session=session, run=run)
    with database.read_everything() as whole:
        quotas = DeviceQuotas.read(whole)
    return numbers | {"overloaded": overload.in_words(), "job": job, "quota": quotas.reason(run)}
