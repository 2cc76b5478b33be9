"""The size of a value that a caller sent, before anything parses it."""

from typing import Any


def exceeds(value: Any, most: int) -> bool:
    """True if a value has more than `most` characters, of which a number, a list and each of their like counts as one. Reads no
    further than that."""
    waiting, size = [value], 0
    while waiting:
        item = waiting.pop()
        size += len(item) if isinstance(item, str | bytes) else 1
        if isinstance(item, dict):
            size += len(item)
            waiting += [*item, *item.values()] if size <= most else []
        elif isinstance(item, list | tuple):
            waiting += item if size + len(item) <= most else []
            size += 0 if size + len(item) <= most else len(item)
        if size > most:
            return True
    return False
