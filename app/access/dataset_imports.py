"""Imports of data sets in the background, for pages and REST: from uploads, the server's folders, the hub, and the sample."""

import itertools
import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from app.access import callers
from app.access.permissions import check_change
from app.errors import storage_problem
from app.format.dataset_text import problems_of
from app.texts import gettext_noop
from training.errors import DataError, NotFound
from worker.allowed_paths import STARTER
from worker.datasets import datasets, folders, hub
from worker.settings import get_settings, hub_is_offline
from worker.store import sight
from worker.store.tables import LOCAL, Dataset

ONE_SET, PAIR, SEPARATE = "one data set", "training + validation", "separate data sets"
WAYS = [ONE_SET, PAIR, SEPARATE]

_HELD_OUT = re.compile(r"(^|[^a-z])(val|valid|validation|eval|evaluation|dev|test|held-?_?out)([^a-z]|$)")


def from_folder(name: str) -> int:
    """Imports a copy of a file in an allowed folder; returns the import's id.

    Raises:
        DataError: the file does not exist, or is in no allowed folder.
    """
    path, owner = folders.resolve(name), callers.current().name  # the thread that reads the file has no caller

    def add() -> list[Dataset]:
        return [datasets.add_file(path=path, name=path.name, owner=owner)]

    return intakes.begin(name, path.stat().st_size, add, owner=owner)


def from_hub(dataset_id: str, split: str, config: str, revision: str) -> int:
    """Downloads a data set from the hub and imports it; returns the import's id. Empty texts stand for the defaults."""
    owner, chosen = callers.current().name, split or "train"

    def add() -> list[Dataset]:
        path = hub.fetch(dataset_id, chosen, config or None, revision or None, owner)
        ending = "".join(path.suffixes[-2:]) if path.suffix == ".gz" else path.suffix
        name = f"{dataset_id.replace('/', '-')}-{chosen}{ending}"
        return [datasets.add_file(path=path, name=name, move=True, owner=owner)]

    return intakes.begin(dataset_id, 0, add, owner=owner)


def from_sample() -> int:
    """Imports the sample data, training and held-out rows; returns the import's id."""
    train, *held_out = samples()
    owner = callers.current().name

    def add() -> list[Dataset]:
        return [datasets.add_file(path=path, name=path.name, owner=owner) for path in (train, *held_out)]

    return intakes.begin("Starter sample", train.stat().st_size, add, paired=True, owner=owner)


def samples() -> list[Path]:
    """The files of sample data."""
    return sorted(STARTER.glob("*.jsonl"), reverse=True)


def folder_choices() -> list[str]:
    """Files in the allowed folders."""
    return [str(name) for name in folders.listing()]


def folder_reason() -> str:
    """Why no file of the server can be imported; empty if files can be."""
    if get_settings().data_folders:
        return ""
    return gettext_noop("This server has no data folders. Set LATHE_DATA_FOLDERS and restart Lathe.")


def hub_reason() -> str:
    """Why the hub cannot be used; empty if it can be."""
    if hub_is_offline():
        return gettext_noop("This server works offline (HF_HUB_OFFLINE is set). Upload the file instead.")
    return ""


def from_uploads(paths: Sequence[Path], way: str) -> None:
    """Imports uploaded files as one data set, as training and validation data, or separately, and deletes the uploads."""
    owner = callers.current().name  # the thread that reads the file has no caller
    if len(paths) > 1 and way == ONE_SET:
        _begin(paths, lambda: [_many(paths, owner)], owner)
    elif len(paths) == 2 and way == PAIR:
        first, second = in_order(paths)
        _begin((first, second), lambda: [_one(first, owner), _one(second, owner)], owner, paired=True)
    else:
        for path in paths:
            _begin([path], partial(_separate, path, owner), owner)


def in_order(paths: Sequence[Path]) -> list[Path]:
    """Training data, then validation data: by their names, else the larger file is training data."""

    def key(path: Path) -> tuple[bool, int]:
        return bool(_HELD_OUT.search(path.stem.lower())), -path.stat().st_size

    return sorted(paths, key=key)


def _begin(paths: Sequence[Path], add: Callable[[], Sequence[Dataset]], owner: str, *, paired: bool = False) -> None:
    names = " + ".join(path.name for path in paths)
    intakes.begin(names, sum(path.stat().st_size for path in paths), add, paired=paired, owner=owner)


def _separate(path: Path, owner: str) -> list[Dataset]:
    return [_one(path, owner)]


def _one(path: Path, owner: str) -> Dataset:
    try:
        return datasets.add_file(path=path, name=path.name, move=True, owner=owner)
    finally:
        _remove_folder(path)


def _many(paths: Sequence[Path], owner: str) -> Dataset:
    try:
        return datasets.add_many(paths=paths, names=[path.name for path in paths], owner=owner)
    finally:
        for path in paths:
            path.unlink(missing_ok=True)
            _remove_folder(path)


def _remove_folder(path: Path) -> None:
    with suppress(OSError):  # the folder may hold another upload of the same bytes
        path.parent.rmdir()


log = logging.getLogger(__name__)

_KEPT_SECONDS = {"done": 120.0, "refused": 3600.0}
_AT_ONCE = 2


@dataclass(frozen=True)
class Intake:
    """An import of one file, or of several together. `added` are (id, name) of its data sets; `paired`: training and validation."""

    id: int
    name: str
    bytes: int
    since: float
    state: str = "checking"
    problems: Sequence[dict[str, Any]] = ()
    added: Sequence[tuple[str, str]] = ()
    paired: bool = False
    owner: str = LOCAL
    ended: float = field(default=0.0)


class ImportNotFound(NotFound):
    """No import has this id."""


Work = tuple[Intake, Callable[[], Sequence[Dataset]]]


class Intakes:
    """The imports of this server, of each user in turn. Thread-safe."""

    def __init__(self) -> None:
        self._intakes: dict[int, Intake] = {}
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="intake")
        self._waiting: dict[str, deque[Work]] = {}  # by user, whose turn is next first

    def begin(
        self,
        name: str,
        size: int,
        add: Callable[[], Sequence[Dataset]],
        *,
        paired: bool = False,
        owner: str = LOCAL,
    ) -> int:
        """Runs `add`, which stores the data, in a thread; returns the import's id."""
        intake = Intake(next(self._numbers), name, size, time.time(), paired=paired, owner=owner)
        self._store(intake)
        with self._lock:
            self._waiting.setdefault(owner, deque()).append((intake, add))
        self._pool.submit(lambda: self._run(*self._next()))
        return intake.id

    def _next(self) -> Work:
        """The next import, so that the files of a user wait for one of each other user at most."""
        with self._lock:
            owner = next(iter(self._waiting))
            works = self._waiting.pop(owner)
            work = works.popleft()
            if works:
                self._waiting[owner] = works
            return work

    def all(self) -> list[Intake]:
        """The imports that the user sees, oldest first, without those that ended long ago."""
        now = time.time()
        with self._lock:
            self._intakes = {
                number: intake
                for number, intake in self._intakes.items()
                if not intake.ended or now - intake.ended <= _KEPT_SECONDS[intake.state]
            }
            return [intake for intake in self._intakes.values() if sight.user() in (None, intake.owner)]

    def get(self, number: int) -> Intake:
        """One import. Raises ImportNotFound if there is none with this id, or it ended long ago."""
        found = next((intake for intake in self.all() if intake.id == number), None)
        if found is None:
            fix = "Data sets that were imported are at /api/datasets."
            raise ImportNotFound("import", number, "does not exist, or ended long ago.", fix)
        return found

    def dismiss(self, number: int) -> None:
        """Removes an import that has ended. Raises Forbidden if somebody else started it."""
        with self._lock:
            intake = self._intakes.get(number)
            if intake is not None and intake.ended:
                check_change("file", intake.name, intake.owner)
                del self._intakes[number]

    def _run(self, intake: Intake, add: Callable[[], Sequence[Dataset]]) -> None:
        try:
            added = [(item.id, item.name) for item in add()]
        except DataError as error:
            self._store(_refused(intake, problems_of(error)))
        except Exception as error:  # the only boundary of this thread: the page shows the error
            log.exception("Could not import %s", intake.name)
            issue = _issue(f"Import failed with {type(error).__name__}.", "See the server's log.")
            if problem := storage_problem(error):
                issue = _issue(
                    " ".join(filter(None, ("The", problem.field, problem.value, problem.message))), problem.fix
                )
            self._store(_refused(intake, [issue]))
        else:
            self._store(replace(intake, state="done", added=added, ended=time.time()))

    def _store(self, intake: Intake) -> None:
        with self._lock:
            self._intakes[intake.id] = intake


intakes = Intakes()
"""The imports of this server."""


def _refused(intake: Intake, problems: list[dict[str, Any]]) -> Intake:
    return replace(intake, state="refused", problems=problems, ended=time.time())


def _issue(message: str, fix: str) -> dict[str, Any]:
    return {"level": "error", "message": message, "fix": fix}
