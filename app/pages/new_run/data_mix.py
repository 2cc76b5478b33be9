"""Several data sets as the data of a run: a table to edit, and the changes that it sends. Pure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.format import numbers
from training.config.data_sets import entries, last_part
from worker.store.tables import Dataset

Sets = Mapping[str, Dataset]
"""Stored data sets by id."""


def label(value: str, stored: Sets) -> str:
    """A list of data sets as a choice: "2 data sets: alpaca.jsonl, chat.jsonl"."""
    found = entries(value) or []
    return (
        f"{numbers.plural(len(found), 'data set', 'data sets')}: {', '.join(_name(entry, stored) for entry in found)}"
    )


def changed(value: str, change: Mapping[str, Any]) -> str:
    """The setting after a change from the page: a data set to `add` or the index of one to `remove`, or a `key` of the data set
    number `set` with its new value."""
    found = entries(value)
    if found is None:
        found = [{"path": value}] if value else []
    if path := str(change.get("add") or ""):
        found += [{"path": path}] if all(entry.get("path") != path for entry in found) else []
    elif "remove" in change:
        found = [entry for index, entry in enumerate(found) if index != change["remove"]]
    elif change.get("key") == "columns" and change.get("set") in range(len(found)):
        found[int(change["set"])]["columns"] = str(change.get("value") or "")
        if not change.get("value"):
            del found[int(change["set"])]["columns"]
    elif change.get("key") in ("weight", "max_rows") and change.get("set") in range(len(found)):
        key, typed = str(change["key"]), _number(str(change.get("value") or "").strip())
        if typed == "" and key == "weight":
            for entry in found:  # the other weights would give this set the weight 1
                entry.pop("weight", None)
        elif typed == "":
            found[int(change["set"])].pop(key, None)
        else:
            found[int(change["set"])][key] = typed
    if not found:
        return ""
    return (
        str(found[0]["path"])
        if len(found) == 1 and set(found[0]) == {"path"}
        else json.dumps(found, ensure_ascii=False)
    )


@dataclass(frozen=True)
class MixedSet:
    """A line of the table of data sets: its entry in the setting, its name, its stored data set, and its share of an epoch."""

    name: str
    item: Dataset | None
    weight: str
    max_rows: str
    share: float | None


def mixed(found: Sequence[Mapping[str, Any]], stored: Sets) -> list[MixedSet]:
    """The lines of the table of data sets."""
    return [
        MixedSet(
            _name(entry, stored),
            stored.get(str(entry.get("path"))),
            _shown(entry, "weight"),
            _shown(entry, "max_rows"),
            share,
        )
        for entry, share in zip(found, _shares(found, stored), strict=True)
    ]


def _shares(found: Sequence[Mapping[str, Any]], stored: Sets) -> list[float | None]:
    """The share of each set: of the weights, else of the rows."""
    amounts: list[float | None] = [_amount(entry.get("weight")) for entry in found]
    if any(amounts):
        amounts = [amount or 1.0 for amount in amounts]
    else:
        items = [stored.get(str(entry.get("path"))) for entry in found]
        amounts = [
            min(item.rows, _amount(entry.get("max_rows")) or item.rows) if item else None
            for item, entry in zip(items, found, strict=True)
        ]
    known = [amount for amount in amounts if amount is not None]
    total = sum(known) if len(known) == len(amounts) else 0
    return [amount / total if amount is not None and total else None for amount in amounts]


def _amount(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and value > 0 else None


def _name(entry: Mapping[str, Any], stored: Sets) -> str:
    path = str(entry.get("path", ""))
    item = stored.get(path)
    return str(entry.get("name") or (item.name if item else last_part(path)))


def _number(typed: str) -> Any:
    """A number as typed; other text stays text, which the check of the form names."""
    try:
        number = float(typed)
    except ValueError:
        return typed
    return int(number) if number == int(number) else number


def _shown(entry: Mapping[str, Any], key: str) -> str:
    value = entry.get(key)
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
