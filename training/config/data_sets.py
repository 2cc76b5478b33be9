"""The settings `data` and `validation_data`: one data set, or several with their weights.

One data set is written as its path or id. Several are a JSON list as text, so that forms, flags and the database keep one value:
`[{"path": "alpaca.jsonl", "weight": 3}, {"path": "chat.jsonl", "max_rows": 5000}]`. Files and flags may also give a list.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

FIELDS = ("data", "validation_data")
MOST_SETS = 64
_LARGEST_NUMBER = 1e9
_LONGEST_NAME = 48  # with its prefix, the name of a metric has at most 60 characters
_OPTIONS = re.compile(r',\s*+(\w+)\s*+=\s*+("[^"]*"(?=\s*+(?:,|$))|[^,]*)')


@dataclass(frozen=True)
class Source:
    """A data set of a run: the path or id, its name on pages, and how much of it is used.

    `weight` is its share relative to the other sets; None where no set has a weight. `max_rows` is the maximum number of its
    rows that are used, sampled with the seed. `columns` is its own column mapping.
    """

    path: str
    name: str = ""
    weight: float | None = None
    max_rows: int | None = None
    columns: str | None = None


_KEYS = tuple(field.name for field in fields(Source))


def sources(text: str | None) -> tuple[Source, ...]:
    """The data sets that a setting names; empty for an empty setting."""
    if not text:
        return ()
    listed = _list_in(text)
    if listed is None:
        return (Source(text),)
    found = tuple(Source(**entry) for entry in listed)
    if not any(source.weight for source in found):
        return found
    return tuple(Source(**(asdict(source) | {"weight": source.weight or 1.0})) for source in found)


def entries(text: str | None) -> list[dict[str, Any]] | None:
    """The entries of a JSON list of data sets as they are, valid or not; None for one data set."""
    listed = _list_in(text or "")
    return None if listed is None else [dict(one) for one in listed if isinstance(one, Mapping)]


def written(found: Sequence[Source]) -> str:
    """The value of the setting for these data sets."""
    first = found[0]
    if len(found) == 1 and first == Source(first.path):
        return first.path
    entries = [{key: value for key, value in asdict(source).items() if value not in (None, "")} for source in found]
    return json.dumps(entries, ensure_ascii=False)


def canonical(value: Any) -> Any:
    """The value of the setting for what a file, a flag or a form gives. Raises ValueError if an entry of a list is not valid;
    names the entry."""
    value = [value] if isinstance(value, Mapping) else value
    listed = list(value) if isinstance(value, (list, tuple)) else _list_in(value) if isinstance(value, str) else None
    if listed is None:
        if isinstance(value, str) and value.lstrip().startswith("[{"):
            raise ValueError("is not a valid JSON list of data sets")
        return value
    if not listed:
        raise ValueError("is an empty list")
    if len(listed) > MOST_SETS:
        raise ValueError(f"has {len(listed)} data sets; at most {MOST_SETS} are possible")
    found = [_source(entry, f"data set {number}") for number, entry in enumerate(listed, start=1)]
    for number, source in enumerate(found):
        if any((source.path, source.columns) == (other.path, other.columns) for other in found[:number]):
            raise ValueError(f"has {source.path} twice; list it once, with a larger weight")
    return written(found)


def canonical_validation(value: Any) -> Any:
    """`canonical` for `validation_data`, whose sets are evaluated completely. Raises ValueError as `canonical`, and if a set
    has a weight."""
    text = canonical(value)
    if any(source.weight for source in sources(text if isinstance(text, str) else None)):
        raise ValueError("has a weight; every row of the evaluation data counts, so leave weights out")
    return text


def as_lists(values: dict[str, Any]) -> dict[str, Any]:
    """A configuration's values with several data sets as lists, for files."""
    listed = {name: _list_in(value) for name in FIELDS if isinstance(value := values.get(name), str)}
    return values | {name: value for name, value in listed.items() if value is not None}


def set_names(found: Sequence[Source]) -> list[str]:
    """A different name for each data set, short enough for the name of a metric."""
    names: list[str] = []
    for source in found:
        name = plain = (source.name or last_part(source.path))[:_LONGEST_NAME]
        number = 2
        while name in names:
            name, number = f"{plain[: _LONGEST_NAME - 4]} ({number})", number + 1
        names.append(name)
    return names


def has_weights(value: Any) -> bool:
    """True if a setting, as typed or stored, names several data sets with weights."""
    try:
        text = canonical(value)
    except ValueError:
        return False
    found = sources(text) if isinstance(text, str) else ()
    return len(found) > 1 and found[0].weight is not None


def last_part(path: str) -> str:
    """The last part of a path or hub id."""
    return path.rstrip("/").rsplit("/", 1)[-1]


def _list_in(text: str) -> list[Any] | None:
    """The JSON list in a text; None if it is the path or id of one data set."""
    if not text.lstrip().startswith("["):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, list) else None


def _source(entry: Any, place: str) -> Source:
    values = _split(entry) if isinstance(entry, str) else dict(entry) if isinstance(entry, Mapping) else None
    if values is None:
        raise ValueError(f"{place} is neither text nor a mapping with path, weight, max_rows and columns")
    if unknown := [str(key) for key in values if key not in _KEYS]:
        raise ValueError(f"{place} has an unknown key {unknown[0]!r}; known are {', '.join(_KEYS)}")
    path = values.get("path")
    if not isinstance(path, str) or not path.strip():
        raise ValueError(f"{place} has no path")
    for key in ("name", "columns"):
        if not isinstance(values.get(key) or "", str):
            raise ValueError(f"{place}: {key} must be text")
    return Source(
        path.strip(),
        (values.get("name") or "").strip(),
        _number(values.get("weight"), f"{place}: weight must be a number above 0, at most 1e9"),
        _integer(values.get("max_rows"), f"{place}: max_rows must be an integer from 1 to 1e9"),
        (values.get("columns") or "").strip() or None,
    )


def _split(text: str) -> dict[str, Any]:
    """An entry as text: `alpaca.jsonl, weight=3, max_rows=5000, columns="prompt=question, completion=answer"`."""
    first = next((match for match in _OPTIONS.finditer(text) if match[1] in _KEYS), None)
    if first is None:
        return {"path": text}
    options = {match[1]: match[2].strip().strip('"') for match in _OPTIONS.finditer(text, first.start())}
    return {"path": text[: first.start()], **options}


def _number(value: Any, message: str) -> float | None:
    if value in (None, ""):
        return None
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 < number <= _LARGEST_NUMBER:
        raise ValueError(message)
    return number


def _integer(value: Any, message: str) -> int | None:
    number = _number(value, message)
    if number is None:
        return None
    if number < 1 or not number.is_integer():
        raise ValueError(message)
    return int(number)
