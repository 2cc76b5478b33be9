"""A cache that forgets after a moment: several viewers of the same thing cost the database one reading."""

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class TimedCache(Generic[Key, Value]):
    """Keeps what was made for a key for `seconds`, the `size` latest of them. Safe for several threads."""

    def __init__(self, seconds: float, size: int = 64, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._size, self._clock = seconds, size, clock
        self._kept: OrderedDict[Key, tuple[float, Value]] = OrderedDict()
        self._lock = Lock()

    def get(self, key: Key, make: Callable[[], Value]) -> Value:
        """What was made for `key` lately, or what `make` makes now. Two threads at once may both make it."""
        with self._lock:
            kept = self._kept.get(key)
        if kept is not None and self._clock() - kept[0] < self._seconds:
            return kept[1]
        value = make()
        with self._lock:
            self._kept[key] = (self._clock(), value)
            self._kept.move_to_end(key)
            while len(self._kept) > self._size:
                self._kept.popitem(last=False)
        return value

    def clear(self) -> None:
        """Forgets everything, for whoever has just changed something and wants to see it."""
        with self._lock:
            self._kept.clear()
