"""Builds: forms of a run's result that users ask for, made by a process beside the worker that holds the run's files.

`python -m worker.builds BUILD_ID ATTEMPT` is one attempt at a build. One at a time runs on a worker: each may hold a whole model in
memory.
"""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

from sqlmodel import col

from training import redaction
from training.config.fields import ConfigError
from training.errors import Problem
from training.run_folder import checkpoints
from training.run_folder.paths import MERGED_FOLDER, checkpoint_dir, checkpoint_step, result_dir, saved_result
from training.units import byte_size
from worker import celery_app, disk_quota
from worker.machine import overload
from worker.machine.process_identity import me
from worker.machine.sizes import size_of
from worker.results import fetching, results
from worker.runs.requests import admitted
from worker.runs.settle import Settled
from worker.settings import get_settings
from worker.store import builds, database, runs
from worker.store.tables import LOCAL, Build, Run
from worker.store.work import BUILD
from worker.supervision.queued_work import WorkQueue, WorkState, WorkSupervisor

NEWEST = "checkpoint"
"""In place of checkpoint-N: the newest one."""

_DISK_FIX = "Free disk space, as on the page System, then try again."


def submit(run_id: str, form: str, *, owner: str = LOCAL) -> Build:
    """Queues the build of a form of a run's result: merged, gguf, gguf-TYPE, gguf-adapter, checkpoint-N or checkpoint.

    Raises:
        RunNotFound: no run has this id.
        NoResult: the run has no such form, or its method cannot have it.
        ConfigError: the run names what its owner may not, or the disk or the owner's quota has no space; nothing is queued.
    """
    with database.read() as session:
        run = runs.get(session=session, run_id=run_id)
    kept = checkpoints.sealed(get_settings().runs_dir / run.id)
    if form == NEWEST and kept:
        form = kept[0].name
    results.check(run, form)
    if checkpoint_step(Path(form)) is not None and form not in [path.name for path in kept] and _here(run):
        fix = f"Choose one of {', '.join(path.name for path in kept)}." if kept else f"Resume it: lathe resume {run.id}"
        raise results.NoResult("form", form, "is not kept, or was not saved completely.", fix)
    if not _here(run) and not fetching.is_elsewhere(run) and not get_settings().broker_url:
        results.find(run)
    _check_space(run, form, settled=admitted(run))
    with database.write() as session:
        item = builds.create(session=session, run_id=run.id, form=form, owner=owner)
    celery_app.notify(run.id)
    return item


def start_waiting() -> list[Build]:
    """Starts the oldest queued build of a run whose files this machine has or can download, and returns it."""
    if overload.here():
        return []
    with _queue.supervisors.lock:
        item = None if _queue.supervisors.started else _claimed()
        if item:
            _queue.supervise(item)
    return [item] if item else []


def _here(run: Run) -> bool:
    run_dir = get_settings().runs_dir / run.id
    return bool(saved_result(run_dir) or checkpoints.sealed(run_dir))


def _check_space(run: Run, form: str, settled: Settled) -> None:
    """Compares an estimate of what the build writes with the disk and the quota of the run's owner."""
    run_dir = get_settings().runs_dir / run.id
    if (run_dir / results.file_of(form)).is_file():
        return
    needed = _needed(run_dir, form, settled)
    if _here(run) and needed > (free := shutil.disk_usage(run_dir).free):
        message = f"needs about {byte_size(needed)}; the disk of {run_dir} has {byte_size(free)} free."
        raise ConfigError([Problem("form", form, message, _DISK_FIX)])
    if over := disk_quota.measured(run.owner).refusal(needed):
        raise ConfigError([Problem("form", form, over, disk_quota.FIX)])


def _needed(run_dir: Path, form: str, settled: Settled) -> int:
    """The bytes that a build writes at most; a model of unknown size counts nothing."""
    if (step := checkpoint_step(Path(form))) is not None:
        return 2 * (_weights(checkpoint_dir(run_dir, step)) or size_of(checkpoint_dir(run_dir, step)).bytes)
    if form == results.GGUF_ADAPTER:
        return _weights(result_dir(run_dir, adapts=True))
    model = _weights(settled.folder) if settled.folder else 0
    merged = model if settled.config.method.adapts and not (run_dir / MERGED_FOLDER).is_dir() else 0
    more = 2 if form in results.GGUF_FORMS and results.GGUF_FORMS[form].by_llama_cpp else 1
    return merged + more * model


def _weights(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def _claimed() -> Build | None:
    with database.write() as session:
        for item in builds.startable(session=session):
            run = runs.get(session=session, run_id=item.run_id)
            if _here(run) or fetching.is_elsewhere(run):
                lease = {"holder": str(me()), "lease_seconds": get_settings().lease_seconds}
                return BUILD.take(session, col(Build.id) == item.id, **lease)
    return None


def _folder(item: Build) -> Path:
    """Where the supervisor's log goes."""
    return get_settings().runs_dir / item.run_id / "builds" / item.form


def _build(item: Build, run: Run, state: WorkState, mark: str) -> dict[str, Any]:
    """Makes the form, and keeps it where other machines find it."""
    fetching.fetch_checkpoint(run, item.form)
    notes: list[str] = []

    def progress(phase: str, done: int, total: int) -> None:
        if state.stopping.is_set():
            raise results.NoResult("form", item.form, "is not built, as requested.", "")
        state.progress(phase, done, total)

    built = results.Builder(run, tell=notes.append, progress=progress, mark=mark).build(item.form)
    progress("uploading", 0, 0)
    fetching.keep(run, built)
    return {"notes": "\n".join(notes)}


_queue = WorkQueue(BUILD, "worker.builds", _folder)
recover = _queue.recover


def main() -> int:
    """Supervises the build in the arguments."""
    redaction.start_logging()
    return WorkSupervisor(BUILD, (sys.argv[1], int(sys.argv[2])), _build).run()


if __name__ == "__main__":
    # Threads of the work may still run after a lost lease.
    sys.stdout.flush()
    os._exit(main())
