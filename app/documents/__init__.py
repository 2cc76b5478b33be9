"""Runs, data sets, forecasts and comparisons as documents: what REST answers, --json prints and the pages draw.

A document is a pydantic model with a function that fills it from the database. Its docstring and the descriptions of its fields
are those of the API's reference.
"""

from collections.abc import Callable, Collection
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, create_model
from sqlmodel import SQLModel


class Document(BaseModel):
    """An answer, or a part of one."""

    model_config = ConfigDict(from_attributes=True, protected_namespaces=())


Kind = TypeVar("Kind", bound=type[Document])


def columns(table: type[SQLModel], names: Collection[str]) -> Callable[[Kind], Kind]:
    """A decorator that puts these columns of a table before the fields of a document, with their types and descriptions.

    The document has no methods of its own.
    """

    def extended(document: Kind) -> Kind:
        fields: dict[str, Any] = {}
        for name in names:
            column = table.model_fields[name]
            fields[name] = (column.annotation, Field(description=column.description))
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
