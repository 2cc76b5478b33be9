"""Matches module names with a regular expression that a user wrote, in bounded time. Python's `re` takes days for some."""

import re
from functools import lru_cache

import regex

LONGEST = 2000
MATCH_SECONDS = 0.2
_LONG_NAME = "model.language_model.layers.0.self_attn.q_proj" + ".x" * 20


@lru_cache(maxsize=64)
def problem(pattern: str) -> str | None:
    """Why a pattern cannot be used; None if it can. PEFT matches it with `re`, so both must accept it."""
    if len(pattern) > LONGEST:
        return f"has {len(pattern):,} characters; at most {LONGEST:,} are possible"
    try:
        re.compile(pattern)
        _compiled(pattern).fullmatch(_LONG_NAME, timeout=MATCH_SECONDS, concurrent=True)
    except (re.error, regex.error, OverflowError) as error:
        return f"is not valid: {error}"
    except RecursionError:
        return "is nested too deeply"
    except TimeoutError:
        return "takes too long to match. Nested repetitions such as (a+)+ cause this"
    return None


def matches(pattern: str, name: str) -> bool:
    """True if the pattern matches the whole name; False for a pattern with a `problem`."""
    if problem(pattern):
        return False
    try:
        return bool(_compiled(pattern).fullmatch(name, timeout=MATCH_SECONDS, concurrent=True))
    except TimeoutError:
        return False


@lru_cache(maxsize=64)
def _compiled(pattern: str) -> "regex.Pattern[str]":
    return regex.compile(pattern)
