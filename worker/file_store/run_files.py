"""The files of a run in the object store: complete checkpoints, the result, records and logs."""

import logging
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar

from training.files import locked
from training.run_folder import checkpoints, paths
from training.run_folder.derived import is_outdated, remove_outdated
from worker.file_store import object_store
from worker.file_store.object_store import Journal, ObjectStore, pull_folder, push_file, push_folder

log = logging.getLogger(__name__)
_FOLDERS = ("initial_adapter", "adapter", "model", paths.MERGED_FOLDER, paths.PARITY_FOLDER)
_SECONDS_BETWEEN_LOOKS = 5.0
_PATIENCE_SECONDS = 600.0
_CHECKPOINTS = "checkpoints"
T = TypeVar("T")


class RunFiles:
    """Keeps a run's files in the object store up to date while a supervisor follows it. Does nothing without a store."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir, self._key = run_dir, f"runs/{run_dir.name}"
        self._ended = threading.Event()
        self._fetched = False  # before that, what is missing here must not be deleted in the store
        self._thread: threading.Thread | None = None

    def fetch(self, offsets: tuple[int, int], beat: Callable[[], object]) -> None:
        """Downloads what another machine's attempt left, and calls `beat` meanwhile. Then uploads complete checkpoints in a thread.

        `offsets` are the bytes of records and log that the database has.

        Raises:
            Exception: the store does not answer, or a file in it is damaged.
        """
        if store := object_store.configured():
            while_beating(lambda: self._pull(store, offsets), beat)
            self._fetched = True
            self._thread = threading.Thread(target=self._keep_pushing, args=(store,), name="uploads", daemon=True)
            self._thread.start()

    def outdate(self, beat: Callable[[], object]) -> None:
        """Deletes the forms of an earlier result, here and in the store, because the run trains again; calls `beat` meanwhile.

        Raises:
            Exception: the store does not answer.
        """
        remove_outdated(self._run_dir)
        if store := object_store.configured():
            while_beating(lambda: _delete_outdated(store, self._key), beat)

    def finish(self, beat: Callable[[], object], *, seconds: float = _PATIENCE_SECONDS) -> bool:
        """Uploads everything, and calls `beat` meanwhile. Tries again for `seconds`; False if the store did not answer."""
        store = object_store.configured()
        if store is None or not self._fetched:
            return True
        self._ended.set()
        return while_beating(lambda: self._push_patiently(store, seconds), beat)

    def _push_patiently(self, store: ObjectStore, seconds: float) -> bool:
        if self._thread is not None:
            self._thread.join()
        deadline = time.monotonic() + seconds
        while True:
            try:
                self._push(store)
                return True
            except Exception as error:  # every store has errors of its own
                log.warning("upload: %s", error)
                if time.monotonic() > deadline:
                    return False
                time.sleep(min(_SECONDS_BETWEEN_LOOKS, seconds))

    def _keep_pushing(self, store: ObjectStore) -> None:
        while not self._ended.wait(_SECONDS_BETWEEN_LOOKS):
            try:
                self._push_checkpoints(store, Journal(self._run_dir))
            except Exception as error:  # training goes on; the next look tries again
                log.warning("upload: %s", error)

    def _push(self, store: ObjectStore) -> None:
        journal = Journal(self._run_dir)
        self._push_checkpoints(store, journal)
        for name in _FOLDERS:
            if (self._run_dir / name).is_dir():
                push_folder(store, self._run_dir / name, f"{self._key}/{name}", journal)
        for file in sorted(self._run_dir.iterdir()):
            if file.is_file() and not file.name.startswith(".") and file.suffix != ".zip":
                push_file(store, file, f"{self._key}/{file.name}", journal)

    def _push_checkpoints(self, store: ObjectStore, journal: Journal) -> None:
        """Uploads complete checkpoints with the records so far, then deletes those that are no longer kept here."""
        kept = {path.name: path for path in checkpoints.sealed(self._run_dir)}
        for name, path in kept.items():
            try:
                push_folder(store, path, f"{self._key}/{_CHECKPOINTS}/{name}", journal)
            except FileNotFoundError:  # deleted meanwhile, for a newer one
                continue
        for name in (paths.CONFIG_FILE, paths.LINEAGE_FILE, paths.EVENTS_FILE, paths.LOG_FILE):
            if (self._run_dir / name).is_file():
                push_file(store, self._run_dir / name, f"{self._key}/{name}", journal)
        for name in self._stored_checkpoints(store) - {path.name for path in checkpoints.sealed(self._run_dir)}:
            store.delete_all(f"{self._key}/{_CHECKPOINTS}/{name}")

    def _stored_checkpoints(self, store: ObjectStore) -> set[str]:
        prefix = f"{self._key}/{_CHECKPOINTS}/"
        return {key.removeprefix(prefix).partition("/")[0] for key in store.keys(prefix.rstrip("/"))}

    def _pull(self, store: ObjectStore, offsets: tuple[int, int]) -> None:
        with alone(self._run_dir):  # a page may still download the files that the last attempt left
            self._pull_missing(store, offsets)

    def _pull_missing(self, store: ObjectStore, offsets: tuple[int, int]) -> None:
        newest = max((paths.checkpoint_step(path) or 0 for path in checkpoints.sealed(self._run_dir)), default=-1)
        for name in self._stored_checkpoints(store):
            folder = paths.checkpoints_dir(self._run_dir) / name
            if (paths.checkpoint_step(folder) or 0) > newest:  # older ones were deleted here
                pull_folder(store, f"{self._key}/{_CHECKPOINTS}/{name}", folder)
        records = self._run_dir / paths.EVENTS_FILE
        trained_elsewhere = (records.stat().st_size if records.exists() else 0) < offsets[0]
        if trained_elsewhere:
            remove_outdated(self._run_dir)
        for name in _FOLDERS:
            if trained_elsewhere or not (self._run_dir / name).exists():
                _pull_result_folder(store, self._key, self._run_dir, name)
        stages = self._run_dir / paths.STAGES_FILE  # after the result, since it says that it is whole
        if not stages.exists() and store.size(f"{self._key}/{stages.name}") is not None:
            store.download(f"{self._key}/{stages.name}", stages)
        for name, stored in zip((paths.EVENTS_FILE, paths.LOG_FILE), offsets, strict=True):
            _pull_lines(store, self._key, self._run_dir / name, stored)


def alone(run_dir: Path) -> AbstractContextManager[None]:
    """Holds the lock of downloads into a run's folder."""
    return locked(run_dir / ".fetching")


def stored(store: ObjectStore, run_dir: Path) -> list[Path]:
    """The parts of a run's folder that the store has: checkpoints, folders and files, by their sizes, and archives of such folders.

    Empty if it lacks the records, without which the run's files would not count as being elsewhere.
    """
    sizes = store.sizes(f"runs/{run_dir.name}")

    def key(path: Path) -> str:
        return f"runs/{run_dir.name}/{path.relative_to(run_dir)}"

    def has_file(file: Path) -> bool:
        return sizes.get(key(file)) == file.stat().st_size

    def has_folder(folder: Path) -> bool:
        complete = key(folder / paths.MANIFEST_FILE) in sizes
        return complete and all(has_file(path) for path in folder.rglob("*") if path.is_file())

    folders = [run_dir / name for name in _FOLDERS if (run_dir / name).is_dir()]
    files = [path for path in run_dir.iterdir() if path.is_file() and not path.name.startswith(".")]
    found = [folder for folder in (*checkpoints.sealed(run_dir), *folders) if has_folder(folder)]
    if set(folders) <= set(found):
        found += [file for file in files if file.suffix == ".zip"]
    found += [file for file in files if has_file(file)]
    return found if run_dir / paths.EVENTS_FILE in found else []


def pull_result(store: ObjectStore, run_dir: Path, events_bytes: int) -> None:
    """Downloads what a run on another machine has left: its result, the files beside it, records and log; no checkpoints.

    Folders that were here before are replaced in one step each, and the forms of an earlier result deleted.
    `events_bytes` of the records were in the database; a machine that was lost may have uploaded fewer, and the rest is filled up.

    Raises:
        Exception: the store does not answer, or a file in it is damaged.
    """
    key = f"runs/{run_dir.name}"
    remove_outdated(run_dir)
    for name in _FOLDERS:
        _pull_result_folder(store, key, run_dir, name)
    for stored in store.keys(key):
        name = stored.removeprefix(f"{key}/")
        if "/" not in name and name != paths.EVENTS_FILE:
            store.download(stored, run_dir / name)
    _pull_lines(store, key, run_dir / paths.EVENTS_FILE, events_bytes)  # the last, since it says that all is here


def pull_checkpoint(store: ObjectStore, run_dir: Path, folder: Path) -> None:
    """Downloads a checkpoint, if the store has it."""
    pull_folder(store, f"runs/{run_dir.name}/{_CHECKPOINTS}/{folder.name}", folder)


def push_built(store: ObjectStore, run_dir: Path, built: Path) -> None:
    """Uploads a form of the result that was built: its file, or for a merged model and all that is made from it, the folder."""
    key, journal = f"runs/{run_dir.name}", Journal(run_dir)
    if (run_dir / paths.MERGED_FOLDER).is_dir():
        push_folder(store, run_dir / paths.MERGED_FOLDER, f"{key}/{paths.MERGED_FOLDER}", journal)
    if built.name != paths.MERGED_FILE:
        push_file(store, built, f"{key}/{built.name}", journal)


def pull_built(store: ObjectStore, run_dir: Path, name: str) -> bool:
    """Downloads what `push_built` uploads, by the name of the built file; False if the store does not have it."""
    key = f"runs/{run_dir.name}"
    if name == paths.MERGED_FILE:
        return (run_dir / paths.MERGED_FOLDER).is_dir() or _pull_result_folder(store, key, run_dir, paths.MERGED_FOLDER)
    there = store.size(f"{key}/{name}") is not None
    if there:
        store.download(f"{key}/{name}", run_dir / name)
    return there


def _pull_result_folder(store: ObjectStore, key: str, run_dir: Path, name: str) -> bool:
    """Downloads a folder and puts it in place of the one here, in one step; False if the store does not have it."""
    part = run_dir / f".{name}.fetched"  # kept if this fails, so that the next try downloads the rest
    there = pull_folder(store, f"{key}/{name}", part)
    if there:
        (part / paths.MANIFEST_FILE).unlink()
        shutil.rmtree(run_dir / name, ignore_errors=True)
        part.rename(run_dir / name)
    return there


def _delete_outdated(store: ObjectStore, key: str) -> None:
    names = {stored.removeprefix(f"{key}/").partition("/")[0] for stored in store.keys(key)}
    for name in filter(lambda name: is_outdated(Path(name)), names):
        store.delete_all(f"{key}/{name}")


def _pull_lines(store: ObjectStore, key: str, file: Path, stored: int) -> None:
    """Downloads records or log if they are longer than here, and fills up to the bytes that the database has read."""
    size = file.stat().st_size if file.exists() else 0
    if size < stored and (store.size(f"{key}/{file.name}") or 0) > size:
        store.download(f"{key}/{file.name}", file)
        size = file.stat().st_size
    if size < stored:
        with file.open("ab") as stream:
            stream.write(b"\n" * (stored - size))


def forget(run_id: str, *checkpoint_names: str) -> None:
    """Deletes a run's files in the store, or only some of its checkpoints. Errors are logged: files without a run are harmless."""
    try:
        if store := object_store.configured():
            for part in [f"/{_CHECKPOINTS}/{name}" for name in checkpoint_names] or [""]:
                store.delete_all(f"runs/{run_id}{part}")
    except Exception as error:
        log.warning("not deleted in the object store: %s", error)


def while_beating(work: Callable[[], T], beat: Callable[[], object]) -> T:
    """Returns what `work` returns, which runs in a thread; calls `beat` meanwhile."""
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as error:
            result.set_exception(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.5)
        beat()
    return result.result()
