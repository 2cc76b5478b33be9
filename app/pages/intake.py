"""Files on their way in: each is checked in a thread of this server, so that a page that is closed or loaded anew loses nothing.

What has become a data set is in the database; this only tells the pages of this server what is going on, and why a file was
not taken in.
"""

import itertools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from app.callers import check_change
from app.dataset_words import problems_of
from training.failure import DataError
from worker.models import LOCAL, Dataset
from worker.patience import UNREACHABLE

log = logging.getLogger(__name__)

_KEPT_SECONDS = {"done": 120.0, "refused": 3600.0}
_AT_ONCE = 2


@dataclass(frozen=True)
class Intake:
    """One file, or several that belong together. `made` are (id, name) of the data sets; `paired`: training and validation."""

    id: int
    name: str
    bytes: int
    since: float
    state: str = "checking"
    problems: Sequence[dict[str, Any]] = ()
    made: Sequence[tuple[str, str]] = ()
    paired: bool = False
    owner: str = LOCAL
    ended: float = field(default=0.0)


class Intakes:
    """What is going on. Safe for several threads."""

    def __init__(self) -> None:
        self._known: dict[int, Intake] = {}
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="intake")

    def begin(
        self,
        name: str,
        size: int,
        take: Callable[[], Sequence[Dataset]],
        *,
        paired: bool = False,
        owner: str = LOCAL,
    ) -> int:
        """Has `take` store the data in a thread; returns the intake's id."""
        one = Intake(next(self._numbers), name, size, time.time(), paired=paired, owner=owner)
        self._keep(one)
        self._pool.submit(self._run, one, take)
        return one.id

    def all(self) -> list[Intake]:
        """The intakes, oldest first, without those that ended long ago."""
        now = time.time()
        with self._lock:
            old = [one.id for one in self._known.values() if one.ended and now - one.ended > _KEPT_SECONDS[one.state]]
            for number in old:
                del self._known[number]
            return list(self._known.values())

    def dismiss(self, number: int) -> None:
        """Forgets an intake that has ended.

        Raises:
            Forbidden: somebody else began it.
        """
        with self._lock:
            one = self._known.get(number)
            if one is not None and one.ended:
                check_change("file", one.name, one.owner)
                del self._known[number]

    def _run(self, one: Intake, take: Callable[[], Sequence[Dataset]]) -> None:
        try:
            made = [(item.id, item.name) for item in take()]
        except DataError as error:
            self._keep(_refused(one, problems_of(error)))
        except UNREACHABLE:
            self._keep(_refused(one, [_issue("The database does not answer.", "Try again in a moment.")]))
        except Exception as error:  # the one boundary of this thread: it is told on the page
            log.exception("%s could not be taken in", one.name)
            self._keep(
                _refused(
                    one, [_issue(f"It could not be taken in ({type(error).__name__}).", "The server's log says more.")]
                )
            )
        else:
            self._keep(replace(one, state="done", made=made, ended=time.time()))

    def _keep(self, one: Intake) -> None:
        with self._lock:
            self._known[one.id] = one


intakes = Intakes()
"""Those of this server."""


def _refused(one: Intake, problems: list[dict[str, Any]]) -> Intake:
    return replace(one, state="refused", problems=problems, ended=time.time())


def _issue(message: str, fix: str) -> dict[str, Any]:
    return {"level": "error", "message": message, "fix": fix}
