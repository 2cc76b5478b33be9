"""The known cause whose signs share most of their rare words with an error that no sign matches."""

import math
import re
from collections import Counter
from functools import cache

from worker.diagnosis.cause import Cause
from worker.diagnosis.causes import CAUSES

_WORD = re.compile(r"[A-Za-z][a-z]{2,}|[A-Z]{3,}")
_SYNTAX = re.compile(r"\(\?P<\w+>|\(\?[:=!<]+|\\[A-Za-z]")
_COMMON = frozenset(
    re.findall(r"\w+", "error runtime value type attribute key import object name has not the and with for was file")
)
_LEAST_WORDS = 2
_LEAST_SHARE = 0.4  # of the error's rare words


def nearest(error: str) -> Cause | None:
    """The cause whose signs contain most of the error's words, weighted by their rarity; None if none has enough of them."""
    by_cause, rarity = _words()
    words = _split(error) & rarity.keys()
    if len(words) < _LEAST_WORDS:
        return None
    total = sum(rarity[word] for word in words)

    def shared(cause: Cause) -> float:
        common = words & by_cause[cause.name]
        return sum(rarity[word] for word in common) / total if len(common) >= _LEAST_WORDS else 0.0

    best = max(CAUSES, key=shared)
    return best if shared(best) >= _LEAST_SHARE else None


@cache
def _words() -> tuple[dict[str, set[str]], dict[str, float]]:
    """The words of each cause's signs, and for each word the logarithm of the share of causes without it."""
    by_cause = {
        cause.name: {word for sign in cause.signs for word in _split(_SYNTAX.sub(" ", sign.pattern.pattern))}
        for cause in CAUSES
    }
    counts = Counter(word for words in by_cause.values() for word in words)
    return by_cause, {word: math.log(len(CAUSES) / count) for word, count in counts.items()}


def _split(text: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(text)} - _COMMON
