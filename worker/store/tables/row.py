"""What all rows have in common: a row that cannot be read whole breaks no list and no page, and stops no worker.

When a row is read, each of its columns is checked against its declaration. A value of another shape, from outside, an older version or
a damaged disk, is read as the column's default. The row names such columns and the cause, and the database keeps what they hold.
"""

import copy
import json
import logging
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar, get_args, get_origin

import pydantic_core
from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from sqlalchemy import event, inspect
from sqlalchemy.orm.attributes import set_committed_value
from sqlmodel import SQLModel

from training.errors import Conflict

_CAUSES = "damaged"
_NOT_FINITE = re.compile(r"NaN|Infinity|\d[eE]\+?\d{3}")
_HALF = re.compile(r"\\u[dD][89a-fA-F]")  # or of a pair, which makes a whole one
_FIX = "Delete it, or correct the database: it still has what was stored."
_reported: set[str] = set()

log = logging.getLogger(__name__)
R = TypeVar("R", bound="Row")


class DamagedRow(Conflict):
    """A row cannot be used, because columns that it needs cannot be read."""


class Unreadable:
    """In place of a value that is no JSON."""


@dataclass(frozen=True)
class Shape:
    """Of a JSON column: the type that its values have for pydantic, and what is read in place of other values, if not its default."""

    type: Any
    instead: Any = None


class Row(SQLModel):
    """A row of any table."""

    @property
    def damaged(self) -> list[str]:
        """The columns whose values could not be read."""
        return sorted(_causes(self))

    @property
    def damage(self) -> str:
        """The columns that could not be read, and why; empty if there are none."""
        return "; ".join(f"{name} ({cause})" for name, cause in sorted(_causes(self).items()))

    def shown(self, *names: str) -> dict[str, Any]:
        """Some of its columns, for an answer that also says what cannot be read."""
        return self.model_dump(include=set(names)) | {"damaged": self.damaged, "damage": self.damage}

    @classmethod
    def check(cls, values: dict[str, Any]) -> None:
        """Compares values with the declarations of their columns.

        Raises:
            ValidationError: one of them has another type, or is out of bounds.
        """
        _checker(cls).model_validate(values)

    def require(self, *names: str) -> None:
        """Does nothing if these columns (by default all) could be read. Raises DamagedRow if one could not."""
        if _causes(self).keys() & set(names or _causes(self)):
            raise DamagedRow("row", self.named, f"is damaged: {self.damage} cannot be read.", _FIX)

    def obstacle(self) -> str:
        """Why no worker can work on it; empty if it can."""
        return f"{self.damage} cannot be read." if self.damage else ""

    @property
    def named(self) -> str:
        """The table and the key of the row."""
        return " ".join(map(str, (type(self).__name__.lower(), *(inspect(self).identity or ()))))


def whole(rows: Iterable[R]) -> Iterator[R]:
    """Yields the rows that a worker can work on; of each other one, the log of this process says once why it is left out."""
    for row in rows:
        if not (obstacle := row.obstacle()):
            yield row
        elif (left_out := f"{row.named} is left out: {obstacle}") not in _reported:
            _reported.add(left_out)
            log.warning("%s", left_out)


def from_json(text: Any) -> Any:
    """What a JSON column holds. NaN and numbers that are too large become null, as when they are written, and half a character, which
    no page can send, U+FFFD."""
    if not isinstance(text, str | bytes):
        return text  # of a number, SQLite keeps no text
    text = text if isinstance(text, str) else text.decode(errors="replace")
    try:
        if _NOT_FINITE.search(text):
            text = json.dumps(json.loads(text, parse_float=_finite, parse_constant=lambda _: None))
        if _HALF.search(text):
            written = json.dumps(json.loads(text), ensure_ascii=False)
            text = written.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return pydantic_core.from_json(text)  # endless nesting is an error to it
    except (ValueError, RecursionError):
        return Unreadable()


def _finite(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


def _causes(row: Row) -> dict[str, str]:
    causes: dict[str, str] = inspect(row).info.get(_CAUSES, {})
    return causes


@event.listens_for(Row, "load", propagate=True)
@event.listens_for(Row, "refresh", propagate=True)
def _leave_out_damaged(row: Row, _: object, names: Sequence[str] | None = None) -> None:
    info = inspect(row).info
    causes = {name: cause for name, cause in info.pop(_CAUSES, {}).items() if names and name not in names}
    try:
        row.check(row.__dict__)
    except ValidationError as error:
        held = dict(row.__dict__)
        for problem in error.errors(include_url=False):
            name, *place = problem["loc"]
            causes.setdefault(str(name), _cause(held[str(name)], place, problem["msg"]))
            set_committed_value(row, str(name), _default(type(row), str(name)))
    if causes:
        info[_CAUSES] = causes


def first_problem(error: ValidationError) -> str:
    """The first problem, with its place."""
    first = error.errors(include_url=False)[0]
    return _located(first["loc"], first["msg"])


def _located(place: Sequence[Any], message: str) -> str:
    return f"{'.'.join(map(str, place))}: {message}" if place else message


def _cause(value: Any, place: Sequence[Any], message: str) -> str:
    return "it is not JSON" if isinstance(value, Unreadable) else _located(place, message)


@cache
def _checker(table: type[Row]) -> type[BaseModel]:
    """The declarations of a table's columns but its key's, without which nothing names the row."""
    keys = {column.key for column in inspect(table).primary_key}
    fields: Any = {name: (_type(table, name), None) for name in table.model_fields if name not in keys}
    config = ConfigDict(allow_inf_nan=False, protected_namespaces=())
    checker: type[BaseModel] = create_model(table.__name__, __config__=config, **fields)
    return checker


def _type(table: type[Row], name: str) -> Any:
    declared = table.model_fields[name]
    if (shape := _shape(table, name)) is None:
        return declared.rebuild_annotation()
    return shape.type | None if type(None) in get_args(declared.annotation) else shape.type


def _shape(table: type[Row], name: str) -> Shape | None:
    return next((one for one in table.model_fields[name].metadata if isinstance(one, Shape)), None)


def _default(table: type[Row], name: str) -> Any:
    declared, shape = table.model_fields[name], _shape(table, name)
    if shape and shape.instead is not None:
        return copy.deepcopy(shape.instead)
    if not declared.is_required():
        return declared.get_default(call_default_factory=True)
    kind: Any = get_origin(declared.annotation) or declared.annotation
    return "damaged" if kind is str else kind()
