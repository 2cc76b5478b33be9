"""The values of a file's sections under dotted keys."""

import re
from collections.abc import Collection, Iterator
from typing import Any

from training.foreign.entries import Values
from training.foreign.shell_values import Unresolved

_REFERENCE = re.compile(r"\$\{([\w.]+)\}")
_MOST_HOPS, _LONGEST_REFERRING = 5, 4096


def flat(values: Values, whole: Collection[str]) -> Values:
    """The values of sections under dotted keys; lists and the keys in `whole` are one value. `${a.b}` is the value of a.b."""
    flat = dict(_dotted(values, whole, ""))
    return {key: _resolved(value, flat) for key, value in flat.items()}


def _dotted(values: Values, whole: Collection[str], start: str) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        name = f"{start}{key}"
        if isinstance(value, dict) and value and name not in whole:
            yield from _dotted(value, whole, f"{name}.")
        else:
            yield name, value


def _resolved(value: Any, flat: Values) -> Any:
    if isinstance(value, dict):
        return {key: _resolved(one, flat) for key, one in value.items()}
    for _ in range(_MOST_HOPS):
        match = _REFERENCE.search(value) if isinstance(value, str) and len(value) <= _LONGEST_REFERRING else None
        if match is None:
            return value
        if match.group(1) not in flat:
            return Unresolved(str(value), f"refers to {match.group(1)}, which the file does not set")
        target = flat[match.group(1)]
        value = target if match.group() == value else value.replace(match.group(), str(target))
    return value
