"""The gate for code: what a user sends has none, whether or not anything names it, unless the user runs the server."""

from collections.abc import Iterator
from typing import Any

from training.config.fields import ConfigError
from training.errors import Problem
from worker.allowed_paths import CODE, CODE_FIX, CODE_SETTING, AllowedPaths

OWN = "own"
"""The files of code that a request sends beside what may name them."""


def refuse_code(sent: Any, allowed: AllowedPaths) -> None:
    """Refuses the code in what a user sends: a body, or the settings of a run or a sweep. Call it before anything reads the values:
    to parse a long file takes a minute of the interpreter.

    Raises:
        ConfigError: there is code, and the user does not run the server.
    """
    if allowed.data is None or not isinstance(sent, dict):
        return
    if found := list(dict.fromkeys(_found(sent))):
        raise ConfigError([Problem(name, None, CODE, CODE_FIX) for name in found])


def _found(sent: dict[Any, Any]) -> Iterator[str]:
    """The names of fields with code: of the body itself, and the setting also in its objects, as a sweep has them."""
    yield from (name for name in (OWN, CODE_SETTING) if sent.get(name))
    for name, inner in sent.items():
        if isinstance(inner, dict) and inner.get(CODE_SETTING):
            yield f"{name}.{CODE_SETTING}"
