"""Virtual time: actions that happen at given seconds, in order."""

import heapq
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from sqlite3 import Connection
from typing import Any
from unittest import mock

from sqlalchemy import event

from worker.store import database

START = 1_800_000_000.0  # seconds since the epoch; any fixed moment
_UNIX_EPOCH_IN_JULIAN_DAYS = 2440587.5


class Timeline:
    """A clock that jumps from one action to the next; actions of the same moment keep their order."""

    def __init__(self) -> None:
        self.now = START
        self._actions: list[tuple[float, int, Callable[[], object]]] = []
        self._number = 0

    def at(self, when: float, action: Callable[[], object]) -> None:
        """Calls `action` at `when`, in seconds since the epoch; at once if that has passed."""
        self._number += 1
        heapq.heappush(self._actions, (max(when, self.now), self._number, action))

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        self.at(self.now + seconds, action)

    def run(self, until: Callable[[], bool], latest: float) -> bool:
        """Runs actions until the condition holds. False if it does not hold at `latest`, or nothing is left to do."""
        while not until():
            if not self._actions or self._actions[0][0] > latest:
                return False
            self.now, _, action = heapq.heappop(self._actions)
            action()
        return True


@contextmanager
def virtual_clocks(timeline: Timeline) -> Iterator[None]:
    """Makes database, engine and reaper read the timeline's clock. Only for SQLite, and only in this process.

    The product's SQL is not changed: SQLite lets a connection replace the function julianday, from which
    worker/store/database.py computes the time.
    """

    def connected(connection: Connection, _: Any) -> None:
        connection.create_function("julianday", 1, lambda _moment: timeline.now / 86400 + _UNIX_EPOCH_IN_JULIAN_DAYS)

    database.dispose()
    event.listen(database.engine(), "connect", connected)
    read_clock = lambda: timeline.now  # noqa: E731
    with (
        mock.patch("worker.engines.slurm.cluster.steady", read_clock),
        mock.patch("worker.supervision.holders.steady", read_clock),
    ):
        try:
            yield
        finally:
            database.dispose()
