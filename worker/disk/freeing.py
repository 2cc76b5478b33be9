"""Frees what worker/disk/offers.py offers; each item is checked again at the moment it is deleted."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from training.run_folder.paths import checkpoints_dir
from worker.datasets import token_cache
from worker.disk import checkpoints, offers
from worker.disk.offers import Freeable, Offer
from worker.machine.sizes import Size, entries, size_of
from worker.settings import get_settings
from worker.store import database, uses
from worker.store.tables import Run
from worker.store.uses import RunState

MayChange = Callable[[str], bool]
"""Takes an owner; true if the caller may change what the owner has."""
_MOST_PROBLEMS = 20


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


def free(progress: Progress, may_change: MayChange, who: str) -> None:
    """Frees all offers of these kinds whose owner the caller `who` may change, and updates `progress`."""
    with database.read_everything() as session:
        states = uses.run_states(session=session)
    wanted = [offer for offer in offers.offers(states) if offer.kind in progress.kinds and may_change(offer.owner)]
    progress.total = len(wanted)
    for offer in wanted:
        try:
            progress.freed += _free(offer, may_change, who)
        except OSError as error:
            progress.failed(f"{offer.path}: {error.strerror or error}")
        progress.done += 1


def _free(offer: Offer, may_change: MayChange, who: str) -> Size:
    """Frees one offer and returns what was freed: nothing if it is needed by now."""
    match offer.kind:
        case Freeable.FINISHED_CHECKPOINTS | Freeable.RESUMABLE_CHECKPOINTS:
            return _free_checkpoints(offer, may_change, who)
        case Freeable.TOKENS:
            return _free_tokens(offer)
        case Freeable.UPLOADS:
            size = size_of(offer.path)
            offer.path.unlink(missing_ok=True)
            return size
        case Freeable.UNKNOWN_RUNS:
            return _free_unknown_run(offer)


def _free_checkpoints(offer: Offer, may_change: MayChange, who: str) -> Size:
    run_dir = get_settings().runs_dir / offer.run_id

    def chosen(state: RunState) -> list[Path]:
        same = offers.checkpoint_kind(state, run_dir) is offer.kind and may_change(state.owner)
        return entries(checkpoints_dir(run_dir)) if same else []

    lost = "" if offer.kind.harmless else " Resume starts at step 0."
    return checkpoints.delete(offer.run_id, chosen, f"{who} freed disk space on the page System.{lost}")


def _free_tokens(offer: Offer) -> Size:
    size = size_of(offer.path)
    if not offers.unused_store(offer.path, offers.used_data()):
        return Size()
    return size if token_cache.remove(offer.path) else Size()


def _free_unknown_run(offer: Offer) -> Size:
    with database.read_everything() as session:
        exists = session.get(Run, offer.run_id) is not None
    if exists or not offers.unknown_run(offer.path):
        return Size()
    size = size_of(offer.path)
    shutil.rmtree(offer.path)
    return size
