"""Runs as jobs of OpenAI's fine-tuning API, data sets as its files, and their lists."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from sqlmodel import Session, and_, col, or_, select

from training.errors import NotFound
from training.run_folder.paths import checkpoint_step
from training.tables import only
from worker.fine_tuning.job import FineTuningJob, resolved
from worker.serving.models import CHECKPOINT, offered
from worker.store import database, history, series
from worker.store.tables import Dataset, Run, RunEvent, Status

Json = dict[str, Any]
Item = TypeVar("Item")

JOB, FILE = "ftjob-", "file-"
PURPOSE = "fine-tune"
_STATUS = only(
    {
        Status.QUEUED: "queued",
        Status.RUNNING: "running",
        Status.FINISHED: "succeeded",
        Status.FAILED: "failed",
        Status.DIVERGED: "failed",
        Status.STOPPED: "cancelled",
    }
)
_MEASURED = {
    "loss": "train_loss",
    "eval_loss": "valid_loss",
    "reward": "train_mean_reward",
    "eval_reward": "valid_mean_reward",
    "learning_rate": "learning_rate",
}
"""Metrics of a run that events and checkpoints have, and what they are called there."""
_MOST_EVENTS, _MOST_POINTS = 5000, 10_000


def own_id(given: str, kind: str, field: str) -> str:
    """The id that Lathe has for an id of a job or a file. Raises NotFound if it is none."""
    if not given.startswith(kind):
        raise NotFound(field, given[:200], "does not exist.", f"Give an id that begins with {kind}; lists have them.")
    return given.removeprefix(kind)


def page_of(
    items: Sequence[Item], after: str | None, limit: int, id_of: Callable[[Item], str], shown: Callable[[Item], Json]
) -> Json:
    """A part of a list, after the item with the id `after`. Raises NotFound if there is none."""
    ids = [id_of(item) for item in items]
    if after is not None and after not in ids:
        raise NotFound("after", after[:200], "is not in this list.", "Give an id of the list, or leave it out.")
    start = ids.index(after) + 1 if after is not None else 0
    part = ids[start : start + limit]
    ends = {"first_id": part[0], "last_id": part[-1]} if part else {"first_id": None, "last_id": None}
    data = [shown(item) for item in items[start : start + limit]]
    return {"object": "list", "data": data, "has_more": start + limit < len(items)} | ends


def jobs(session: Session, after: str | None, limit: int) -> Json:
    """The runs that the API has queued, as far as the user sees them, the newest first; `after` is the id of a job.

    Raises:
        NotFound: there is no such job.
    """
    asked = (
        select(Run).where(col(Run.fine_tuning).is_not(None)).order_by(col(Run.created_at).desc(), col(Run.id).desc())
    )
    if after is not None:
        last = job_run(session, after)
        older = and_(col(Run.created_at) == last.created_at, col(Run.id) < last.id)
        asked = asked.where(or_(col(Run.created_at) < last.created_at, older))
    found = [job(run) for run in session.exec(asked.limit(limit + 1))]
    return {"object": "list", "data": found[:limit], "has_more": len(found) > limit}


def job_run(session: Session, job_id: str) -> Run:
    """The run of a job. Raises NotFound if there is none."""
    missing = NotFound(
        "fine_tuning_job_id", job_id[:200], "does not exist.", "GET /v1/fine_tuning/jobs lists the jobs."
    )
    run = database.existing(session, Run, own_id(job_id, JOB, "fine_tuning_job_id"), missing)
    if run.fine_tuning is None:
        raise missing
    return run


def job(run: Run) -> Json:
    """A run as a job."""
    asked = FineTuningJob.model_validate((run.fine_tuning or {})["job"])
    ended, result = run.status.ended, run.id if run.has_result and run.status.ended else None
    hyperparameters = resolved(asked, run.used) if run.is_configured else {}
    kind = asked.method.type if asked.method else "supervised"
    part = asked.method.model_dump(exclude_none=True)[kind] if asked.method and getattr(asked.method, kind) else {}
    return {
        "id": f"{JOB}{run.id}",
        "object": "fine_tuning.job",
        "created_at": int(run.created_at),
        "finished_at": int(run.finished_at) if ended and run.finished_at else None,
        "estimated_finish": _estimated_finish(run),
        "model": asked.model,
        "fine_tuned_model": result,
        "organization_id": run.owner,
        "status": "paused" if run.held and run.status is Status.QUEUED else _STATUS[run.status],
        "training_file": asked.training_file,
        "validation_file": asked.validation_file,
        "result_files": [],
        "trained_tokens": _trained_tokens(run),
        "hyperparameters": hyperparameters,
        "method": {"type": kind, kind: part | {"hyperparameters": hyperparameters}},
        "seed": run.settings.get("seed"),
        "user_provided_suffix": asked.suffix,
        "integrations": [],
        "metadata": asked.metadata,
        "error": _error(run),
        "lathe": {"run": run.id, "settings": asked.lathe},
    }


def _trained_tokens(run: Run) -> int | None:
    found = run.summary or {}
    if not run.status.ended or not found.get("tokens_per_second") or not found.get("train_seconds"):
        return None
    return round(float(found["tokens_per_second"]) * float(found["train_seconds"]))


def _estimated_finish(run: Run) -> int | None:
    if run.status is not Status.RUNNING or not run.seconds_per_step or not run.total_steps or not run.working_since:
        return None
    return int(run.working_since + run.seconds_per_step * run.total_steps)


def _error(run: Run) -> Json:
    """Why a job failed; empty values if it did not."""
    if _STATUS[run.status] != "failed":
        return {"code": None, "message": None, "param": None}
    told = run.error or {}
    message = " ".join(str(told[name]) for name in ("message", "fix") if told.get(name))
    return {"code": run.status.value, "message": message or "The loss is not finite.", "param": None}


def events(session: Session, run: Run) -> list[Json]:
    """What happened in a job, and its measured values, the newest first."""
    told = [_event(run, event) for event in history.events(session=session, run_id=run.id, limit=_MOST_EVENTS)]
    begun = [
        _as_event(f"ftevent-{run.id}-{number}", run.created_at, "info", message)
        for number, message in enumerate((run.fine_tuning or {}).get("notes", ()))
    ]
    measured = [
        _as_event(
            f"ftevent-{run.id}-step-{step}", time, "info", _step_words(run, step, values), {"step": step} | values
        )
        for step, (time, values) in _measured(session, run).items()
    ]
    return sorted([*begun, *told, *measured], key=lambda one: one["created_at"])[::-1]


def _event(run: Run, event: RunEvent) -> Json:
    level = {"warning": "warn"}.get(event.level, event.level)
    return _as_event(f"ftevent-{run.id}-event-{event.id}", event.time, level, event.message)


def _as_event(event_id: str, time: float, level: str, message: str, data: Json | None = None) -> Json:
    kind = "metrics" if data else "message"
    about = {"object": "fine_tuning.job.event", "id": event_id, "created_at": int(time)}
    return about | {"level": level, "message": message, "type": kind, "data": data or {}}


def _step_words(run: Run, step: int, values: Json) -> str:
    of_all = f"/{run.total_steps}" if run.total_steps else ""
    return f"Step {step}{of_all}: " + ", ".join(f"{name}={value:.4g}" for name, value in values.items())


def _measured(session: Session, run: Run) -> dict[int, tuple[float, Json]]:
    found: dict[int, tuple[float, Json]] = {}
    for line in series.series(session=session, run_id=run.id, names=[*_MEASURED], points=_MOST_POINTS):
        for step, time, value in zip(line.step, line.time, line.value, strict=True):
            if line.rank < 0 and value is not None:
                found.setdefault(step, (time, {}))[1][_MEASURED[line.name]] = value
    return dict(sorted(found.items()))


def checkpoints(session: Session, run: Run) -> list[Json]:
    """The checkpoints of a job that can be served, the newest first."""
    measured = _measured(session, run)
    steps = [(name, _step_of(name)) for name in offered(run) if CHECKPOINT in name]
    return [
        {
            "object": "fine_tuning.job.checkpoint",
            "id": f"ftckpt-{run.id}-{step}",
            "created_at": int(measured.get(step, (run.created_at, {}))[0]),
            "fine_tuned_model_checkpoint": name,
            "fine_tuning_job_id": f"{JOB}{run.id}",
            "step_number": step,
            "metrics": {"step": step} | measured.get(step, (0.0, {}))[1],
        }
        for name, step in steps
    ]


def _step_of(name: str) -> int:
    """The step of a checkpoint by its name in requests, RUN:checkpoint-N."""
    return checkpoint_step(Path(name.partition(":")[2])) or 0


def file(item: Dataset) -> Json:
    """A data set as a file."""
    return {
        "id": f"{FILE}{item.id}",
        "object": "file",
        "bytes": item.bytes,
        "created_at": int(item.created_at),
        "expires_at": None,
        "filename": item.name,
        "purpose": PURPOSE,
        "status": "processed",
        "status_details": None,
    }
