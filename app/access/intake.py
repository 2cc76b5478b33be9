"""Imports of files, checked in threads of this server, so that closing or reloading a page loses nothing.

The database holds the imported data sets; this module holds the running imports and the problems of refused files.
"""

import itertools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from app.access.permissions import check_change
from app.errors import storage_problem
from app.format.datasets import problems_of
from training.errors import DataError, NotFound
from worker.store import sight
from worker.store.tables import LOCAL, Dataset

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


class Intakes:
    """The imports of this server. Thread-safe."""

    def __init__(self) -> None:
        self._intakes: dict[int, Intake] = {}
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="intake")

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
        self._pool.submit(self._run, intake, add)
        return intake.id

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
        """One import.

        Raises:
            ImportNotFound: there is none with this id, or it ended long ago.
        """
        found = next((intake for intake in self.all() if intake.id == number), None)
        if found is None:
            fix = "Data sets that were imported are at /api/datasets."
            raise ImportNotFound("import", number, "does not exist, or ended long ago.", fix)
        return found

    def dismiss(self, number: int) -> None:
        """Removes an import that has ended.

        Raises:
            Forbidden: somebody else started it.
        """
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
