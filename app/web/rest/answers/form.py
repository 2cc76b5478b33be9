"""How a route declares the form of its answer."""

from collections.abc import Callable, Collection
from typing import Any, TypeVar

from fastapi import Response
from pydantic import BaseModel, ConfigDict, Field, create_model
from sqlmodel import SQLModel


class Answer(BaseModel):
    """The form of an answer, or of a part of one."""

    model_config = ConfigDict(protected_namespaces=())


Kind = TypeVar("Kind", bound=type[Answer])


def columns(table: type[SQLModel], names: Collection[str]) -> Callable[[Kind], Kind]:
    """A decorator that adds these columns of a table to a form, with their types and descriptions."""

    def extended(form: Kind) -> Kind:
        listed: dict[str, Any] = {}
        for name in names:
            column = table.model_fields[name]
            listed[name] = (column.annotation, Field(description=column.description))
        make: Any = create_model  # its types know only names that are written out
        added: Kind = make(form.__name__, __base__=form, __doc__=form.__doc__, __module__=form.__module__, **listed)
        return added

    return extended


def answers(form: Any, status: int = 200) -> dict[str, Any]:
    """Options of a route that answers JSON of this form."""
    words = (getattr(form, "__doc__", None) or "The answer.").split("\n\n")[0]
    return {"response_model": None, "responses": {status: {"model": form, "description": " ".join(words.split())}}}


def sends(media: str, description: str) -> dict[str, Any]:
    """Options of a route that sends a file or a stream."""
    content = {media: {"schema": {"type": "string", "format": "binary"} if _is_binary(media) else {"type": "string"}}}
    described = {200: {"content": content, "description": description}}
    return {"response_model": None, "response_class": Response, "responses": described}


def _is_binary(media: str) -> bool:
    return media in ("application/zip", "application/octet-stream")
