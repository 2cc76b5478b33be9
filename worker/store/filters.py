"""The filter of the history: `method:lora status:failed data:alpaca loss<1.5 tag:paper -is:archived "two words"`.

A word without a field is searched in id, name, model, method, data and tags. `-` before a condition negates it.
"""

import json
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

from sqlalchemy import ColumnElement, String, and_, case, false, func, not_, or_, true
from sqlalchemy import cast as cast_to
from sqlmodel import col, select

from training.config.fields import Setting, settings
from training.errors import UserError
from training.nearest import nearest
from worker.store import database, json_parts
from worker.store.json_parts import Lowered
from worker.store.tables import Dataset, Run, Status

Condition = ColumnElement[bool]

_WORD = re.compile(r'(?P<not>-)?(?:(?P<field>[A-Za-z_]\w*)(?P<sign>>=|<=|:|>|<|=))?(?P<value>"[^"]*"?|[^\s"]+)')
_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}
_LENGTH = re.compile(rf"(\d+(?:\.\d+)?)({'|'.join(sorted(_UNITS, key=len, reverse=True))})?")
_GIB = 2**30
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?:\D|$))")  # "1,000"; in "1,5" the comma is no separator
_COMPARISONS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
_MOST_PARTS = 30
_MEANS_TRUE, _MEANS_FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


class FilterError(UserError):
    """A filter that cannot be understood; the field is the part before the sign."""


@dataclass(frozen=True)
class Part:
    """One condition as typed: `-field:value`; `sign` is :, =, >, >=, < or <=, and empty for a bare word."""

    field: str
    sign: str
    value: str
    negated: bool = False


def parts(text: str) -> list[Part]:
    """The conditions in a filter."""
    found = _WORD.finditer(text.replace("\0", ""))
    return [
        Part((one["field"] or "").lower(), one["sign"] or "", one["value"].strip('"'), bool(one["not"]))
        for one in found
        if one["value"].strip('"') or one["field"]
    ]


def conditions(text: str) -> list[Condition]:
    """The filter as SQL. Archived runs are left out unless the filter says `is:archived`.

    Raises:
        FilterError: a field is unknown, or a value does not suit its field.
    """
    found = parts(text)
    if len(found) > _MOST_PARTS:  # each is a search in every row, and databases limit the depth of a statement
        raise FilterError("search", f"{text[:40]}...", f"has {len(found)} conditions.", f"Use at most {_MOST_PARTS}.")
    asked_for = any(part.field == "is" and part.value.lower() == "archived" for part in found)
    listed = [] if asked_for else [col(Run.archived_at).is_(None)]
    return listed + [_negated(_condition(part)) if part.negated else _condition(part) for part in found]


def fields() -> dict[str, str]:
    """The fields of a filter with an example each, apart from the settings, each of which is a field as well."""
    return {name: example for name, (example, _) in _FIELDS.items()}


def _negated(condition: Condition) -> Condition:
    return not_(func.coalesce(condition, false()))


def _condition(part: Part) -> Condition:
    if not part.field:
        return _mentions(part.value)
    if part.field in _FIELDS:
        return _FIELDS[part.field][1](part)
    if part.field in settings():
        return _of_setting(part, settings()[part.field])
    known = [*_FIELDS, *settings()]
    near = nearest(part.field, known, most=3)
    fix = f"Did you mean {', '.join(near)}?" if near else f"Use {', '.join(_FIELDS)} or the name of a setting."
    raise FilterError(part.field, part.value, "is not a field of the filter.", f'{fix} Put text with ":" in quotes.')


def _mentions(word: str) -> Condition:
    places: list[Any] = [col(Run.id), col(Run.name), configured("model"), configured("method"), data_name()]
    return or_(*(_contains(place, word) for place in places), _tagged(word, whole=False))


def _contains(place: Any, word: str) -> Condition:
    return Lowered(place).contains(word.lower(), autoescape=True)


def _tagged(word: str, *, whole: bool) -> Condition:
    # The column is JSON text: a tag stands in it as json.dumps writes it.
    written = json.dumps(word.lower())[1:-1]
    return cast_to(Run.tags, String).contains(f'"{written}"' if whole else written, autoescape=True)


def _text(place: Any) -> Callable[[Part], Condition]:
    def condition(part: Part) -> Condition:
        _uncompared(part)
        if part.sign == "=":
            return Lowered(place) == part.value.lower()
        return _contains(place, part.value)

    return condition


def _status(part: Part) -> Condition:
    _uncompared(part)
    wanted = [value.strip().lower() for value in part.value.split(",")]
    for value in wanted:
        if value not in list(Status):
            raise FilterError(part.field, value, "is not a status.", f"Give {', '.join(Status)}.")
    return col(Run.status).in_([Status(value) for value in wanted])


def _sweep(part: Part) -> Condition:
    """The runs of a sweep, by the beginning of its id; `none` those of no sweep."""
    _uncompared(part)
    if part.value.lower() == "none":
        return col(Run.sweep_id).is_(None)
    return func.coalesce(col(Run.sweep_id), "").startswith(part.value.lower(), autoescape=True)


def _tag(part: Part) -> Condition:
    _uncompared(part)
    return _tagged(part.value, whole=True)


def _is(part: Part) -> Condition:
    _uncompared(part)
    states: dict[str, Condition] = {
        "pinned": col(Run.pinned).is_(True),
        "archived": col(Run.archived_at).is_not(None),
        "held": col(Run.held).is_(True),
        "diverged": col(Run.diverged).is_(True),
        "resumed": col(Run.attempt) > 1,
        "cloned": col(Run.parent_id).is_not(None),
        "running": col(Run.status) == Status.RUNNING,
        "ended": col(Run.finished_at).is_not(None),
    }
    if part.value.lower() not in states:
        raise FilterError("is", part.value, "is not a state.", f"Give {', '.join(states)}.")
    return states[part.value.lower()]


def _number(place: Any, unit: float = 1.0) -> Callable[[Part], Condition]:
    def condition(part: Part) -> Condition:
        try:
            value = float(_THOUSANDS.sub("", part.value)) * unit
        except ValueError:
            message, fix = "is not a number.", f"Write, for example, {part.field}<1.5, with a point."
            raise FilterError(part.field, part.value, message, fix) from None
        return cast(Condition, _COMPARISONS.get(part.sign, operator.eq)(place, value))

    return condition


def _length(place: Any) -> Callable[[Part], Condition]:
    def condition(part: Part) -> Condition:
        return cast(Condition, _COMPARISONS.get(part.sign, operator.eq)(place, _seconds(part)))

    return condition


def _moment(place: Any) -> Callable[[Part], Condition]:
    """A date or an age: `queued:7d` is the last seven days, `queued>2026-11-01` after the end of that day (UTC)."""

    def condition(part: Part) -> Condition:
        try:
            day = datetime.fromisoformat(part.value).replace(tzinfo=UTC).timestamp()
        except ValueError:
            age = database.clock() - _seconds(part)
            return cast(Condition, place <= age if part.sign.startswith(">") else place >= age)
        first, last = cast(Condition, place >= day), cast(Condition, place < day + _UNITS["d"])
        return {">": not_(last), ">=": first, "<": not_(first), "<=": last}.get(part.sign, and_(first, last))

    return condition


def _seconds(part: Part) -> float:
    match = _LENGTH.fullmatch(part.value.lower())
    if match is None:
        message, fix = "is not a time.", f"Write, for example, {part.field}:7d, 90min or 2h; a day as 2026-11-01."
        raise FilterError(part.field, part.value, message, fix)
    return float(match[1]) * _UNITS[match[2] or "s"]


def _of_setting(part: Part, setting: Setting) -> Condition:
    """A condition on a setting of the run's configuration; `none` finds runs without a value."""
    if part.value.lower() in ("none", "null") and part.sign in (":", "="):
        return or_(configured(setting.name).is_(None), false())
    place = _of_its_kind(setting)
    match setting.kind:
        case "integer" | "number":
            return _number(place)(part)
        case "boolean":
            _uncompared(part)
            return _yes(place, part)
        case _:
            return _text(place)(part)


def _yes(place: Any, part: Part) -> Condition:
    if part.value.lower() not in _MEANS_TRUE + _MEANS_FALSE:
        raise FilterError(
            part.field, part.value, "is neither yes nor no.", f"Write {part.field}:yes or {part.field}:no."
        )
    return cast(Condition, place.is_(true() if part.value.lower() in _MEANS_TRUE else false()))


def _uncompared(part: Part) -> None:
    if part.sign not in (":", "="):
        fix = f"Write {part.field}:{part.value}."
        raise FilterError(part.field, part.value, f"cannot be compared with {part.sign}.", fix)


def configured(name: str) -> ColumnElement[Any]:
    """A setting of a run's configuration, as text."""
    return json_parts.text(Run.config, name)


def set_value(setting: Setting) -> ColumnElement[Any]:
    """A setting of a run's configuration; its default where the run is older than the setting."""
    value = _of_its_kind(setting)
    return value if setting.default is None else func.coalesce(value, setting.default)


def _of_its_kind(setting: Setting) -> ColumnElement[Any]:
    kinds = {"integer": json_parts.number, "number": json_parts.number, "boolean": json_parts.flag}
    return kinds.get(setting.kind, json_parts.text)(Run.config, setting.name)


def data_name() -> ColumnElement[Any]:
    """The display name of a run's data set, or its path."""
    named = select(Dataset.name).where(Dataset.id == Run.dataset_id).scalar_subquery()
    return func.coalesce(named, configured("data"))


def elapsed() -> ColumnElement[Any]:
    """The seconds of a run's attempts up to now, as `Run.worked`."""
    running = func.coalesce(database.clock() - col(Run.working_since), 0.0)
    return case((col(Run.started_at).is_not(None), col(Run.worked_seconds) + running))


# An example, and how a condition is made. The settings of a run are fields as well.
_FIELDS: dict[str, tuple[str, Callable[[Part], Condition]]] = {
    "status": ("status:failed,stopped", _status),
    "name": ("name:baseline", _text(col(Run.name))),
    "tag": ("tag:paper", _tag),
    "is": ("is:pinned", _is),
    "data": ("data:alpaca", _text(data_name())),
    "owner": ("owner:anna", _text(col(Run.owner))),
    "notes": ('notes:"new tokenizer"', _text(col(Run.notes))),
    "id": ("id:3f9k", _text(col(Run.id))),
    "sweep": ("sweep:3f9k", _sweep),
    "loss": ("loss<1.5", _number(col(Run.final_loss))),
    "eval_loss": ("eval_loss<1.2", _number(col(Run.best_loss))),
    "peak": ("peak>20 (GiB)", _number(col(Run.peak_bytes), _GIB)),
    "step": ("step>=100", _number(col(Run.step))),
    "duration": ("duration>2h", _length(elapsed())),
    "queued": ("queued:7d", _moment(col(Run.queued_at))),
    "ended": ("ended>2026-11-01", _moment(col(Run.finished_at))),
}
