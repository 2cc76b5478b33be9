"""Whose turn it is to run a program: a few run at a time, of one user half as many, and the others wait.

Each may take a processor and gigabytes of memory, so that the programs of fifty requests together would stop the machine.
"""

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial

AT_ONCE = max(8, os.cpu_count() or 1)
"""Programs that one process runs at a time for requests."""

_user: ContextVar[str] = ContextVar("user", default="")


def act_for(user: str) -> None:
    """Counts the programs that are run from now on in this context, such as a request, as this user's."""
    _user.set(user)


class Turns:
    """At most `most` turns at a time, of one user half as many. Thread-safe."""

    def __init__(self, most: int) -> None:
        self._most, self._of_one = most, max(most // 2, 1)
        self._taken: Counter[str] = Counter()
        self._changed = threading.Condition()
        self._own = threading.local()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Waits for a turn of the context's user, and has it within the `with` block. A thread that has one needs no other."""
        if getattr(self._own, "has", False):
            yield
            return
        user = _user.get()
        with self._changed:
            self._changed.wait_for(lambda: self._is_free(user))
            self._taken[user] += 1
        self._own.has = True
        try:
            yield
        finally:
            self._own.has = False
            self._end(user)

    def begun(self) -> Callable[[], None] | None:
        """A turn of the context's user for work that goes on in another thread, which calls the function when it has ended; None if
        none is free."""
        user = _user.get()
        with self._changed:
            if not self._is_free(user):
                return None
            self._taken[user] += 1
        return partial(self._end, user)

    def _is_free(self, user: str) -> bool:
        return self._taken.total() < self._most and self._taken[user] < self._of_one

    def _end(self, user: str) -> None:
        with self._changed:
            self._taken[user] -= 1
            self._taken += Counter()  # drops counts of 0
            self._changed.notify_all()


turns = Turns(AT_ONCE)
"""The turns of this process."""
