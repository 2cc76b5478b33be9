"""Keeps the files of finished runs that the object store has too within LATHE_STORE_CACHE_BYTES.

Results are downloaded again when they are needed (worker/runs/fetching.py). Runs that can be resumed keep their files.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from training.units import byte_size
from worker.disk import removal
from worker.disk.offers import OLD_SECONDS
from worker.file_store import object_store, run_files
from worker.file_store.object_store import ObjectStore
from worker.machine.process_identity import hostname
from worker.machine.sizes import Size, entries, size_of
from worker.settings import get_settings
from worker.store import database, uses
from worker.store.tables import Status

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Copy:
    """The folder of a finished run on this machine, its bytes, and when it was last used (seconds since the epoch)."""

    folder: Path
    bytes: int
    used_at: float


def evict() -> Size:
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
