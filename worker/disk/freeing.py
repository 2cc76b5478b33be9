"""What can be freed, by kind, and freeing it; each item is checked again at the moment it is deleted."""

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from training.run_folder.derived import is_derived
from training.run_folder.paths import checkpoints_dir, saved_result
from training.units import byte_size
from worker.choices import Freeable
from worker.datasets import token_stores
from worker.disk import removal
from worker.machine.sizes import Size, entries, size_of
from worker.settings import get_settings
from worker.store import database, uses
from worker.store.runs import ID_LENGTH, ID_LETTERS
from worker.store.tables import LOCAL, Run, Status
from worker.store.uses import RunState

OLD_SECONDS = 24 * 3600.0
"""Uploads and unknown run folders younger than a day are kept: something may still use them."""

MayChange = Callable[[str], bool]
"""Takes an owner; true if the caller may change what the owner has."""
_MOST_PROBLEMS = 20


@dataclass(frozen=True)
class Offer:
    """Files that can be freed: a folder or file. `run_id` is the run that they belong to, or empty."""

    kind: Freeable
    path: Path
    owner: str = LOCAL
    run_id: str = ""


@dataclass
class Progress:
    """How far freeing is: items `done` of `total`, what was freed, and what could not be."""

    kinds: tuple[Freeable, ...]
    done: int = 0
    total: int = 0
    freed: Size = field(default_factory=Size)
    problems: list[str] = field(default_factory=list)
    ended_at: float | None = None

    def failed(self, message: str) -> None:
        """Notes what could not be freed."""
        if len(self.problems) < _MOST_PROBLEMS:
            self.problems.append(message)


def offers(states: Mapping[str, RunState]) -> Iterator[Offer]:
    """All that can be freed now, given the state of every run."""
    for folder in entries(get_settings().runs_dir):
        state = states.get(folder.name)
        if state is None:
            if _is_unknown_run(folder):
                yield Offer(Freeable.UNKNOWN_RUNS, folder, run_id=folder.name)
            continue
        if kind := _checkpoint_kind(state, folder):
            yield Offer(kind, checkpoints_dir(folder), state.owner, state.id)
        if state.status.ended:
            yield from (
                Offer(Freeable.BUILDS, path, state.owner, state.id) for path in entries(folder) if is_derived(path)
            )
    used = _used_data()
    yield from (Offer(Freeable.TOKENS, store) for store in token_stores.stores() if _is_unused(store, used))
    for folder_name, _, files in os.walk(get_settings().uploads_dir):  # uploaded, but not imported
        uploads = (Path(folder_name, name) for name in files)
        yield from (Offer(Freeable.UPLOADS, path) for path in uploads if _is_old(path))


def free(progress: Progress, may_change: MayChange, who: str) -> None:
    """Frees all offers of these kinds whose owner the caller `who` may change, and updates `progress`."""
    with database.read_everything() as session:
        states = uses.run_states(session=session)
    chosen = [offer for offer in offers(states) if offer.kind in progress.kinds and may_change(offer.owner)]
    progress.total = len(chosen)
    for offer in chosen:
        try:
            progress.freed += _free(offer, may_change, who)
        except OSError as error:
            progress.failed(f"{offer.path}: {error.strerror or error}")
        progress.done += 1


def _free(offer: Offer, may_change: MayChange, who: str) -> Size:
    """Frees one offer and returns what was freed: nothing if it is needed by now."""
    if offer.kind is Freeable.BUILDS:
        return _free_built(offer, may_change, who)
    if offer.kind.of_runs:
        return _free_checkpoints(offer, may_change, who)
    size = size_of(offer.path)
    match offer.kind:
        case Freeable.TOKENS:
            freed = _is_unused(offer.path, _used_data()) and token_stores.remove(offer.path)
            return size if freed else Size()
        case Freeable.UPLOADS:
            offer.path.unlink(missing_ok=True)
        case Freeable.UNKNOWN_RUNS:
            with database.read_everything() as session:
                exists = session.get(Run, offer.run_id) is not None
            if exists or not _is_unknown_run(offer.path):
                return Size()
            shutil.rmtree(offer.path)
    return size


def _free_checkpoints(offer: Offer, may_change: MayChange, who: str) -> Size:
    run_dir = get_settings().runs_dir / offer.run_id

    def chosen(state: RunState) -> list[Path]:
        same = _checkpoint_kind(state, run_dir) is offer.kind and may_change(state.owner)
        return entries(checkpoints_dir(run_dir)) if same else []

    lost = "" if offer.kind.harmless else " Resume starts at step 0."
    return removal.delete_checkpoints(offer.run_id, chosen, f"{who} freed disk space on the page System.{lost}")


def _free_built(offer: Offer, may_change: MayChange, who: str) -> Size:
    def chosen(run: Run) -> list[Path]:
        return [offer.path] if may_change(run.owner) and offer.path.exists() else []

    def words(paths: Sequence[Path], size: Size) -> str:
        return f"Deleted {paths[0].name} ({byte_size(size.bytes)}). {who} freed disk space on the page System."

    return removal.remove(offer.run_id, chosen, words)[1]


def _checkpoint_kind(state: RunState, run_dir: Path) -> Freeable | None:
    """As what the run's checkpoints can be freed; None if it has none or needs them."""
    if not entries(checkpoints_dir(run_dir)):
        return None
    if state.status is Status.FINISHED and saved_result(run_dir):
        return Freeable.FINISHED_CHECKPOINTS
    return Freeable.RESUMABLE_CHECKPOINTS if state.resumable else None


def _used_data() -> set[str]:
    """The ids of the data sets that queued and running runs use."""
    with database.read_everything() as session:
        users = uses.dataset_users(session=session)
    return {dataset_id for dataset_id, each in users.items() if any(use.needs_it for use in each)}


def _is_unused(store: Path, used: set[str]) -> bool:
    """True if no queued or running run needs these tokens: a store's name begins with its data set's id."""
    return store.name.partition("-")[0] not in used


def _is_unknown_run(folder: Path) -> bool:
    """True for the folder of a run, by its name, that is older than a day; whether the run exists is not checked."""
    named = len(folder.name) == ID_LENGTH and set(folder.name) <= set(ID_LETTERS)
    return named and folder.is_dir() and not folder.is_symlink() and _is_old(folder)


def _is_old(path: Path) -> bool:
    try:
        return time.time() - path.lstat().st_mtime > OLD_SECONDS
    except OSError:
        return False
