"""Texts that a match of a pattern must contain. To look for them is much faster than to try the pattern."""

import importlib
import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

_WORDS = re.compile(r"[A-Za-z]{3,}")


@cache
def needles(pattern: re.Pattern[str]) -> frozenset[str]:
    """Texts of which every match contains at least one; empty if there are none."""
    if pattern.flags & re.IGNORECASE:
        return frozenset()
    return _needles(importlib.import_module("re._parser").parse(pattern.pattern, pattern.flags))


class Haystack:
    """Texts in which patterns are searched."""

    def __init__(self, *texts: str) -> None:
        self._texts = texts
        self._words = "\n".join({word for text in texts for word in _WORDS.findall(text)})

    def may_contain(self, pattern: re.Pattern[str]) -> bool:
        """False if the pattern cannot match in any of the texts."""
        needed = needles(pattern)
        return not needed or any(self._contains(needle) for needle in needed)

    def _contains(self, needle: str) -> bool:
        """True if a text contains the needle; the words are a small text that rules out most."""
        return all(word in self._words for word in _WORDS.findall(needle)) and any(
            needle in text for text in self._texts
        )


def _needles(parts: Iterable[tuple[Any, Any]]) -> frozenset[str]:
    """Of all sets of texts of which one is needed, the one whose shortest text is the longest."""
    return max(_choices(parts), key=lambda texts: min(map(len, texts)), default=frozenset())


def _choices(parts: Iterable[tuple[Any, Any]]) -> Iterator[frozenset[str]]:
    text = ""
    for kind, value in [*parts, ("END", None)]:
        name = str(kind)
        if name == "LITERAL":
            text += chr(value)
            continue
        if _WORDS.search(text):
            yield frozenset({text})
        text = ""
        if inner := _inner(name, value):
            yield inner


def _inner(name: str, value: Any) -> frozenset[str]:
    """The texts that a group, a repetition or an alternative needs."""
    if name == "SUBPATTERN" and not value[1] & re.IGNORECASE:
        return _needles(value[3])
    if name in ("MAX_REPEAT", "MIN_REPEAT") and value[0] > 0:
        return _needles(value[2])
    if name == "BRANCH":
        options = [_needles(option) for option in value[1]]
        return frozenset().union(*options) if all(options) else frozenset()
    return frozenset()
