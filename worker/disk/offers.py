"""What can be freed, by kind. Each offer is checked again when it is freed (worker/disk/freeing.py)."""

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from training.run_folder.paths import checkpoints_dir, saved_result
from worker.datasets import token_cache
from worker.machine.sizes import entries
from worker.settings import get_settings
from worker.store import database, uses
from worker.store.runs import ID_LENGTH, ID_LETTERS
from worker.store.tables import LOCAL, Status
from worker.store.uses import RunState

OLD_SECONDS = 24 * 3600.0
"""Uploads and unknown run folders younger than a day are kept: something may still use them."""


class Freeable(StrEnum):
    """A kind of files that can be freed."""

    FINISHED_CHECKPOINTS = "finished_checkpoints"
    TOKENS = "tokens"
    UPLOADS = "uploads"
    RESUMABLE_CHECKPOINTS = "resumable_checkpoints"
    UNKNOWN_RUNS = "unknown_runs"

    @property
    def harmless(self) -> bool:
        """True if nothing is lost that anybody could need."""
        return self not in (Freeable.RESUMABLE_CHECKPOINTS, Freeable.UNKNOWN_RUNS)

    @property
    def of_runs(self) -> bool:
        """True if the files belong to runs, whose owners may free them."""
        return self in (Freeable.FINISHED_CHECKPOINTS, Freeable.RESUMABLE_CHECKPOINTS)


@dataclass(frozen=True)
class Offer:
    """Files that can be freed: a folder or file. `run_id` is the run that they belong to, or empty."""

    kind: Freeable
    path: Path
    owner: str = LOCAL
    run_id: str = ""


def offers(states: Mapping[str, RunState]) -> Iterator[Offer]:
    """All that can be freed now, given the state of every run."""
    for folder in entries(get_settings().runs_dir):
        state = states.get(folder.name)
        if state is None:
            if unknown_run(folder):
                yield Offer(Freeable.UNKNOWN_RUNS, folder, run_id=folder.name)
        elif kind := checkpoint_kind(state, folder):
            yield Offer(kind, checkpoints_dir(folder), state.owner, state.id)
    used = used_data()
    yield from (Offer(Freeable.TOKENS, store) for store in token_cache.stores() if unused_store(store, used))
    yield from (Offer(Freeable.UPLOADS, file) for file in old_uploads())


def checkpoint_kind(state: RunState, run_dir: Path) -> Freeable | None:
    """As what the run's checkpoints can be freed; None if it has none or needs them."""
    if not entries(checkpoints_dir(run_dir)):
        return None
    if state.status is Status.FINISHED and saved_result(run_dir):
        return Freeable.FINISHED_CHECKPOINTS
    return Freeable.RESUMABLE_CHECKPOINTS if state.resumable else None


def used_data() -> set[str]:
    """The ids of the data sets that queued and running runs use."""
    with database.read_everything() as session:
        users = uses.dataset_users(session=session)
    return {dataset_id for dataset_id, uses in users.items() if any(use.needs_it for use in uses)}


def unused_store(store: Path, used: set[str]) -> bool:
    """True if no queued or running run needs these tokens: a store's name begins with its data set's id."""
    return store.name.partition("-")[0] not in used


def unknown_run(folder: Path) -> bool:
    """True for the folder of a run, by its name, that is older than a day; whether the run exists is not checked."""
    named = len(folder.name) == ID_LENGTH and set(folder.name) <= set(ID_LETTERS)
    return named and folder.is_dir() and not folder.is_symlink() and _is_old(folder)


def old_uploads() -> Iterator[Path]:
    """Uploaded files older than a day, which were not imported."""
    for folder, _, files in os.walk(get_settings().uploads_dir):
        yield from (path for name in files if _is_old(path := Path(folder, name)))


def _is_old(path: Path) -> bool:
    try:
        return time.time() - path.lstat().st_mtime > OLD_SECONDS
    except OSError:
        return False
