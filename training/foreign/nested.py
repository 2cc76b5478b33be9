"""Configurations with sections, as one mapping with dotted keys, and the references between their values."""

import re
from collections.abc import Collection
from typing import Any

from training.foreign.entries import Values
from training.foreign.shell_values import Unresolved

_REFERENCE = re.compile(r"\$\{([\w.]+)\}")
_MOST_HOPS = 5
_LONGEST = 4096


def flat(values: Values, whole: Collection[str]) -> Values:
    """The values with dotted keys; lists and the keys in `whole` stay one value. `${section.key}` becomes what it refers to."""
    listed = _flat(values, whole, "")
    return {key: _resolved(value, listed) for key, value in listed.items()}


def _flat(values: Values, whole: Collection[str], start: str) -> Values:
    listed: Values = {}
    for key, value in values.items():
        name = f"{start}{key}"
        nested = isinstance(value, dict) and bool(value) and name not in whole
        listed |= _flat(value, whole, f"{name}.") if nested else {name: value}
    return listed


def _resolved(value: Any, listed: Values) -> Any:
    if isinstance(value, dict):
        return {key: _resolved(one, listed) for key, one in value.items()}
    for _ in range(_MOST_HOPS):
        match = _REFERENCE.search(value) if isinstance(value, str) and len(value) <= _LONGEST else None
        if match is None:
            return value
        if match.group(1) not in listed:
            return Unresolved(str(value), f"refers to {match.group(1)}, which the file does not set")
        target = listed[match.group(1)]
        value = target if match.group() == value else value.replace(match.group(), str(target))
    return value
