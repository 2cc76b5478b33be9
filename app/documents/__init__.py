"""Runs, data sets, forecasts and comparisons as documents: what REST answers, --json prints and the pages draw.

A document is a pydantic model with a function that fills it from the database. Its docstring and the descriptions of its fields
are those of the API's reference.
"""

from collections.abc import Callable, Collection
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.fields import FieldInfo
from sqlmodel import SQLModel


class Document(BaseModel):
    """An answer, or a part of one."""

    model_config = ConfigDict(from_attributes=True, protected_namespaces=())


Kind = TypeVar("Kind", bound=type[Document])


class Stored(Document):
    """What a row holds."""

    damaged: list[str] = Field([], description="fields that cannot be read and have no value here")
    damage: str = Field("", description="these fields, and why; empty if there are none")


def columns(source: type, names: Collection[str] = ()) -> Callable[[Kind], Kind]:
    """A decorator that puts these columns of a table, or fields of a dataclass (by default all), before the fields of a document,
    with their types and descriptions.

    The document has no methods of its own.
    """
    declared = source.model_fields if issubclass(source, SQLModel) else _fields(source)

    def extended(document: Kind) -> Kind:
        fields: dict[str, Any] = {}
        for name in names or declared:
            fields[name] = (_in_json(declared[name].annotation), Field(description=declared[name].description))
        own, make = cast(Any, document).model_fields, cast(Any, create_model)
        for name in document.__annotations__:
            fields[name] = (own[name].annotation, own[name])
        whole: Kind = make(
            document.__name__,
            __base__=document.__bases__,
            __doc__=document.__doc__,
            __module__=document.__module__,
            **fields,
        )
        return whole

    return extended


def _fields(source: type) -> dict[str, FieldInfo]:
    hints = get_type_hints(source, include_extras=True)
    return {name: FieldInfo.from_annotation(hint) for name, hint in hints.items()}


def _in_json(annotation: Any) -> Any:
    """A type as JSON has it: tuples are lists, and the bounds are left out that only what is stored has to keep."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _in_json(parts[0])
    if origin is tuple:
        return list[_in_json(parts[0])]  # type: ignore[misc]
    inner: Any = tuple(map(_in_json, parts))
    return annotation if not parts else Union[inner] if origin in (Union, UnionType) else origin[inner]  # noqa: UP007


_EXAMPLE: Any = {
    "error": {"field": "lora_r", "value": 0, "message": "is below 1.", "fix": "Use 1 to 1024."},
    "problems": [{"field": "lora_r", "value": 0, "message": "is below 1.", "fix": "Use 1 to 1024."}],
}


class ErrorEntry(Document):
    """What is wrong: `field` and `value` (null if there is none), the message, the fix; `changes` are settings that fix it."""

    field: str
    value: Any
    message: str
    fix: str
    changes: dict[str, Any] = Field({})


class ErrorAnswer(Document):
    """Every error has this form. `problems` lists all of them if there can be several; `error` is the first."""

    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE]})

    error: ErrorEntry
    problems: list[ErrorEntry] = Field([])
