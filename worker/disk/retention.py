"""Retention rules: which checkpoints of ended runs a worker deletes, and which runs it archives. Without settings, none.

LATHE_KEEP_CHECKPOINTS keeps the newest checkpoints of an ended run. Of a failed or stopped run that keeps its best evaluation's
checkpoint (`load_best_at_end`), nothing is deleted: Resume needs it. LATHE_CHECKPOINT_DAYS deletes the checkpoints of a finished
run with a result some days after its end. LATHE_ARCHIVE_DAYS archives ended runs that are not pinned. LATHE_STORE_CACHE_BYTES
limits the files of finished runs that the object store has too.
"""

import fcntl
import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from training.run_folder import checkpoints as run_checkpoints
from training.run_folder.paths import checkpoints_dir, saved_result
from training.units import byte_size
from worker.disk import removal
from worker.disk.freeing import OLD_SECONDS
from worker.file_store import object_store, run_files
from worker.file_store.object_store import ObjectStore
from worker.machine.process_identity import hostname
from worker.machine.sizes import Size, entries, size_of
from worker.settings import Settings, get_settings
from worker.store import database, runs, uses
from worker.store.tables import Status
from worker.store.uses import RunState

log = logging.getLogger(__name__)

EVERY_SECONDS = 3600.0
_DAY = 24 * 3600.0
_MARK = "retention.lock"


@dataclass(frozen=True)
class Due:
    """Checkpoints of a run that a rule deletes now, with the reason as a sentence."""

    run_id: str
    paths: tuple[Path, ...]
    reason: str


def rules(settings: Settings) -> bool:
    """True if there is a rule."""
    known = settings.keep_checkpoints, settings.checkpoint_days, settings.archive_days, settings.store_cache_bytes
    return any(rule is not None for rule in known)


def due(states: Mapping[str, RunState], now: float) -> list[Due]:
    """What the rules delete now, for the runs with these states; `now` is by the database's clock."""
    settings = get_settings()
    if not rules(settings):
        return []
    folders = (folder for folder in entries(settings.runs_dir) if folder.name in states)
    found = (of_run(states[folder.name], folder, settings, now) for folder in folders)
    return [item for item in found if item.paths]


def of_run(state: RunState, run_dir: Path, settings: Settings, now: float) -> Due:
    """The checkpoints of one run that the rules delete now; none of a run that has not ended."""
    days, keep = settings.checkpoint_days, settings.keep_checkpoints
    finished = state.status is Status.FINISHED
    if days is not None and finished and saved_result(run_dir) and now - (state.finished_at or now) > days * _DAY:
        reason = f"LATHE_CHECKPOINT_DAYS={days:g}: the run finished more than {days:g} days ago."
        return Due(state.id, tuple(entries(checkpoints_dir(run_dir))), reason)
    if keep is not None and state.status.ended and (finished or not state.keeps_best):
        reason = f"LATHE_KEEP_CHECKPOINTS={keep}: an ended run keeps its newest checkpoints."
        return Due(state.id, tuple(run_checkpoints.sealed(run_dir)[keep:]), reason)
    return Due(state.id, (), "")


def apply() -> Size:
    """Deletes what the rules delete now, and archives; each run is checked again in the transaction that deletes."""
    settings, freed = get_settings(), Size()
    if settings.archive_days is not None:
        with database.write() as session:
            runs.archive_ended(session=session, seconds=settings.archive_days * _DAY)
    with database.read_everything() as session:
        states, now = uses.run_states(session=session), database.now(session=session)
    for item in due(states, now):
        run_dir = settings.runs_dir / item.run_id

        def chosen(state: RunState, run_dir: Path = run_dir) -> tuple[Path, ...]:
            return of_run(state, run_dir, settings, now).paths

        try:
            freed += removal.delete_checkpoints(item.run_id, chosen, item.reason)
        except OSError as error:
            log.warning("the checkpoints of run %s cannot be deleted: %s", item.run_id, error)
    return freed + evict_copies()


def apply_if_due() -> threading.Thread | None:
    """Applies the rules in a thread, unless a worker with this data folder did within the last hour. Returns the thread."""
    if not rules(get_settings()) or not _is_due():
        return None
    thread = threading.Thread(target=_apply_locked, name="retention", daemon=True)
    thread.start()
    return thread


def _mark() -> Path:
    return get_settings().data_dir / _MARK


def _is_due() -> bool:
    try:
        return abs(time.time() - _mark().stat().st_mtime) > EVERY_SECONDS
    except FileNotFoundError:
        return True


def _apply_locked() -> None:
    """Applies the rules, unless another worker is doing so. The lock's time is that of the latest start."""
    try:
        with _mark().open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _mark().touch()
            apply()
    except BlockingIOError:
        return
    except Exception:  # a thread of the worker: reported, and tried again in an hour
        log.exception("the retention rules could not be applied")


@dataclass(frozen=True)
class Copy:
    """The folder of a finished run on this machine, its bytes, and when it was last used (seconds since the epoch)."""

    folder: Path
    bytes: int
    used_at: float


def evict_copies() -> Size:
    """Deletes local files, those of the least recently used runs first, until the rest fits. Nothing without a store or a limit.

    Only files are deleted that the store has with the same size, and only of runs that nobody used within a day.
    """
    limit, freed = get_settings().store_cache_bytes, Size()
    store = object_store.configured() if limit is not None else None
    if limit is None or store is None:
        return freed
    copies = sorted(_copies(), key=lambda copy: copy.used_at)
    over = sum(copy.bytes for copy in copies) - limit
    for copy in copies:
        if freed.bytes >= over or time.time() - copy.used_at < OLD_SECONDS:
            break
        try:
            freed += _delete(store, copy.folder, limit)
        except Exception as error:  # every store has errors of its own
            log.warning("the files of run %s stay on this machine: %s", copy.folder.name, error)
    return freed


def _copies() -> Iterator[Copy]:
    with database.read_everything() as session:
        states = uses.run_states(session=session)
    for folder in entries(get_settings().runs_dir):
        state = states.get(folder.name)
        if state is not None and state.status is Status.FINISHED:
            with suppress(FileNotFoundError):  # the run is deleted meanwhile
                yield Copy(folder, size_of(folder).bytes, max(folder.stat().st_mtime, state.finished_at or 0.0))


def _delete(store: ObjectStore, folder: Path, limit: int) -> Size:
    stored = run_files.stored(store, folder)  # not under the lock: a store may be slow

    def words(_: Sequence[Path], size: Size) -> str:
        reason = f"LATHE_STORE_CACHE_BYTES={limit}: the object store has them."
        return f"Deleted its files on {hostname()} ({byte_size(size.bytes)}). {reason}"

    return removal.remove(folder.name, lambda run: stored if run.status is Status.FINISHED else [], words)[1]
