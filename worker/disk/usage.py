"""Measures the disk use of an installation by kind. It reads every folder: call it in the background."""

import heapq
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from sqlmodel import func, select

from training.run_folder.derived import is_derived
from training.run_folder.paths import ARCHIVE_FILE, checkpoints_dir, tokens_dir
from training.tables import only
from worker.choices import Freeable
from worker.disk import freeing, retention
from worker.disk.removal import is_aside
from worker.machine.sizes import Size, entries, size_of
from worker.settings import get_settings
from worker.store import database
from worker.store.tables import Dataset
from worker.store.uses import RunState, run_states

LARGEST_RUNS = 10
_RESULTS = ("adapter", "model", ARCHIVE_FILE)


class FileKind(StrEnum):
    """A kind of files of an installation."""

    CHECKPOINTS = "checkpoints"
    RESULTS = "results"
    RUN_FILES = "run_files"
    TOKENS = "tokens"
    DATASETS = "datasets"
    UPLOADS = "uploads"
    LOGS = "logs"
    MODELS = "models"


@dataclass(frozen=True)
class RunUse:
    """The disk use of a run; `status` is "" if the database has no such run."""

    id: str
    name: str
    owner: str
    status: str
    size: Size
    checkpoints: Size


@dataclass(frozen=True)
class Usage:
    """The disk use, `measured_at` seconds since the epoch, which took `seconds`."""

    kinds: Mapping[FileKind, Size]
    runs: tuple[RunUse, ...]
    """The largest runs, the largest first."""
    owners: Mapping[str, int]
    """The bytes of each owner's runs and data sets."""
    freeable: Mapping[tuple[Freeable, str], Size]
    """What can be freed, by kind and owner."""
    retention: Size
    """What the retention rules would delete now."""
    retention_runs: int
    measured_at: float
    seconds: float


def measure(progress: Callable[[int, int], None]) -> Usage:
    """Measures everything; `progress` receives how many folders of runs are done, and their number."""
    began, settings = time.time(), get_settings()
    with database.read_everything() as session:
        states, now = run_states(session=session), database.now(session=session)
        stored = select(Dataset.owner, func.sum(Dataset.bytes)).group_by(Dataset.owner)
        owners = Counter({owner: int(size) for owner, size in session.exec(stored)})
    kinds: dict[FileKind, Size] = dict.fromkeys(FileKind, Size())
    largest: list[tuple[int, int, RunUse]] = []
    folders = entries(settings.runs_dir)
    for number, folder in enumerate(folders):
        progress(number, len(folders))
        use, sizes = _run(folder, states.get(folder.name))
        _add(kinds, sizes)
        owners[use.owner] += use.size.bytes
        heapq.heappush(largest, (use.size.bytes, number, use))
        if len(largest) > LARGEST_RUNS:
            heapq.heappop(largest)
    _add(
        kinds, only({FileKind.TOKENS: size_of(settings.tokens_dir), FileKind.DATASETS: size_of(settings.datasets_dir)})
    )
    _add(
        kinds,
        only({FileKind.UPLOADS: size_of(settings.uploads_dir), FileKind.LOGS: _logs(), FileKind.MODELS: _models()}),
    )
    freeable: dict[tuple[Freeable, str], Size] = {}
    for offer in freeing.offers(states):
        key = offer.kind, offer.owner
        freeable[key] = freeable.get(key, Size()) + size_of(offer.path)
    planned = retention.due(states, now)
    deleted = sum((size_of(path) for one in planned for path in one.paths), Size())
    uses = tuple(use for _, _, use in sorted(largest, reverse=True))
    return Usage(kinds, uses, owners, freeable, deleted, len(planned), began, time.time() - began)


def model_caches() -> list[Path]:
    """The folders with models from the hub and compiled operators on this machine, which other programs use too."""
    from huggingface_hub.constants import HF_HUB_CACHE

    cache_root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return [Path(HF_HUB_CACHE), cache_root / "lathe"]


def _run(folder: Path, state: RunState | None) -> tuple[RunUse, dict[FileKind, Size]]:
    """The use of a run's folder, as a whole and by kind."""
    sizes = {kind: Size() for kind in (FileKind.CHECKPOINTS, FileKind.RESULTS, FileKind.TOKENS, FileKind.RUN_FILES)}
    for path in entries(folder):
        _add(sizes, {_kind(path): size_of(path)})
    name, owner, status = (state.name, state.owner, state.status.value) if state else (folder.name, "", "")
    whole = sum(sizes.values(), Size())
    return RunUse(folder.name, name, owner, status, whole, sizes[FileKind.CHECKPOINTS]), sizes


def _kind(path: Path) -> FileKind:
    """The kind of an entry of a run's folder."""
    if path == checkpoints_dir(path.parent) or is_aside(path):
        return FileKind.CHECKPOINTS
    if path == tokens_dir(path.parent):
        return FileKind.TOKENS
    return FileKind.RESULTS if path.name in _RESULTS or is_derived(path) else FileKind.RUN_FILES


def _logs() -> Size:
    """All else in the data folder: logs, caches, and the database, unless it is on a server."""
    settings = get_settings()
    counted = {settings.runs_dir, settings.tokens_dir, settings.datasets_dir, settings.uploads_dir, *model_caches()}
    return sum((size_of(path) for path in entries(settings.data_dir) if path not in counted), Size())


def _models() -> Size:
    return sum(map(size_of, model_caches()), Size())


def _add(sizes: dict[FileKind, Size], more: Mapping[FileKind, Size]) -> None:
    for kind, size in more.items():
        sizes[kind] = sizes.get(kind, Size()) + size
