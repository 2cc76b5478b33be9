"""Results of ended runs that are not on this machine: downloaded from the object store when they are asked for."""

import contextlib
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from training.errors import UserError
from training.run_folder import paths
from worker.file_store import object_store, run_files
from worker.file_store.object_store import ObjectStore
from worker.results.packing import pack, pack_results
from worker.settings import get_settings
from worker.store.tables import Run

log = logging.getLogger(__name__)

STORE_FIX = "Check LATHE_STORE_URL, its credentials and the disk, then try again."


class NotFetched(UserError):  # noqa: N818
    """The files of a run could not be downloaded."""


@dataclass
class Fetch:
    """A download under way. `problem` says at its end what went wrong."""

    done: threading.Event = field(default_factory=threading.Event)
    problem: str = ""


_lock = threading.Lock()
_fetches: dict[tuple[str, int], Fetch] = {}


def is_elsewhere(run: Run) -> bool:
    """True if the run has ended, and its files are in the object store but not here."""
    if not run.status.ended or not get_settings().store_url:
        return False
    try:
        here = (get_settings().runs_dir / run.id / paths.EVENTS_FILE).stat().st_size
    except FileNotFoundError:
        here = 0
    return here < run.event_offset  # the bytes of records that the database has read


def start(run: Run) -> Fetch | None:
    """Begins to download the run's files in a thread, or finds the download that is under way; None if they are here.

    A download that failed is returned once; then the next call tries again.
    """
    key = run.id, run.attempt
    with _lock:
        if known := _fetches.get(key):
            if known.done.is_set():
                del _fetches[key]
            return known
        store = object_store.configured() if is_elsewhere(run) else None
        if store is None:
            _note_use(run)
            return None
        fetch = _fetches[key] = Fetch()
        threading.Thread(target=_download, args=(store, run, fetch), name="fetch", daemon=True).start()
        return fetch


def fetch(run: Run) -> None:
    """Downloads the run's files if they are elsewhere, and waits.

    Raises:
        NotFetched: the object store does not answer, a file in it is damaged, or the disk is full.
    """
    under_way = start(run)
    if under_way and under_way.done.is_set():  # it failed before
        under_way = start(run)
    if under_way is None:
        return
    under_way.done.wait()
    if under_way.problem:
        raise NotFetched("run", run.id, under_way.problem, STORE_FIX)


def fetch_checkpoint(run: Run, name: str) -> None:
    """Downloads a checkpoint that is not here, if the object store has it; another name does nothing.

    Raises:
        NotFetched: as `fetch`.
    """
    if paths.checkpoint_step(Path(name)) is not None:
        folder = paths.checkpoints_dir(get_settings().runs_dir / run.id) / name
        _fetch_missing(
            run, folder / paths.MANIFEST_FILE, lambda store, run_dir: run_files.pull_checkpoint(store, run_dir, folder)
        )


def keep(run: Run, built: Path) -> None:
    """Uploads a form of the run's result that was built, if there is an object store.

    Raises:
        NotFetched: the object store does not answer.
    """
    _with_store(run, lambda store, run_dir: run_files.push_built(store, run_dir, built))


def fetch_built(run: Run, name: str) -> None:
    """Downloads a form of the run's result that was built on another machine, by the name of its file, if the object store has it.

    Raises:
        NotFetched: as `fetch`.
    """

    def pull(store: ObjectStore, run_dir: Path) -> None:
        if run_files.pull_built(store, run_dir, name) and name == paths.MERGED_FILE:
            pack(run_dir / paths.MERGED_FOLDER, run_dir / paths.MERGED_FILE)

    _fetch_missing(run, get_settings().runs_dir / run.id / name, pull)


def _fetch_missing(run: Run, path: Path, pull: Callable[[ObjectStore, Path], object]) -> None:
    """Downloads what an ended run does not have here, once for all who ask at the same time."""

    def pull_once(store: ObjectStore, run_dir: Path) -> None:
        with run_files.alone(run_dir):
            if not path.exists():
                pull(store, run_dir)

    if run.status.ended and not path.exists():
        _with_store(run, pull_once)


def _with_store(run: Run, action: Callable[[ObjectStore, Path], object]) -> None:
    if store := object_store.configured():
        try:
            action(store, get_settings().runs_dir / run.id)
        except Exception as error:  # every store has errors of its own
            message = f"its files could not be copied from or to the object store ({type(error).__name__}: {error})."
            raise NotFetched("run", run.id, message, STORE_FIX) from None


def _note_use(run: Run) -> None:
    """Sets the time by which worker/disk/retention.py knows what was used least recently."""
    with contextlib.suppress(OSError):
        if get_settings().store_cache_bytes is not None:
            os.utime(get_settings().runs_dir / run.id)


def _download(store: ObjectStore, run: Run, fetch: Fetch) -> None:
    run_dir = get_settings().runs_dir / run.id
    try:
        with run_files.alone(run_dir):
            if is_elsewhere(run):  # no other process has downloaded them meanwhile
                run_files.pull_result(store, run_dir, run.event_offset)
                if run.has_result:
                    pack_results(run_dir)
    except Exception as error:  # every store has errors of its own
        log.warning("run %s is not fetched: %s", run.id, error)
        fetch.problem = f"Its files could not be downloaded from the object store ({type(error).__name__}: {error})."
    else:
        with _lock:
            del _fetches[run.id, run.attempt]
    finally:
        fetch.done.set()
