"""A cache with a time limit: several viewers of a run cost one database read.

A user who does not see everything shares no value with others, and no language with another.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

from app import texts
from worker.store import sight

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class TimedCache(Generic[Key, Value]):
    """Keeps the `size` latest values, each for `seconds`. Thread-safe."""

    def __init__(self, seconds: float, size: int = 64, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._size, self._clock = seconds, size, clock
        self._entries: OrderedDict[tuple[str | None, str, Key], tuple[float, Value]] = OrderedDict()
        self._lock = Lock()

    def get(self, key: Key, make: Callable[[], Value]) -> Value:
        """The cached value of `key`, else the result of `make`. Two threads may both call `make` at the same time."""
        with self._lock:
            entry = self._known(key)
        if entry is not None:
            return entry[1]
        value = make()
        self.put(key, value)
        return value

    def __contains__(self, key: Key) -> bool:
        with self._lock:
            return self._known(key) is not None

    def _known(self, key: Key) -> tuple[float, Value] | None:
        entry = self._entries.get(_own(key))
        return entry if entry is not None and self._clock() - entry[0] < self._seconds else None

    def put(self, key: Key, value: Value) -> None:
        """Sets the value of `key`."""
        with self._lock:
            own = _own(key)
            self._entries[own] = (self._clock(), value)
            self._entries.move_to_end(own)
            while len(self._entries) > self._size:
                self._entries.popitem(last=False)

    def clear(self) -> None:
        """Removes all values."""
        with self._lock:
            self._entries.clear()


def _own(key: Key) -> tuple[str | None, str, Key]:
    return sight.user(), texts.language(), key
