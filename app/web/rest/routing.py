"""What routes share: bounded parameters, JSON bodies within the limits of training/config/json_text.py, the forms of answers,
and the answer to malformed requests.

Answers are dictionaries of `app/documents`, sent as they are: the forms describe them and convert nothing. A test compares real
answers with them.
"""

import json
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field, create_model
from sqlmodel import SQLModel

from app.web.security import ErrorResponse
from training.config import json_text
from training.config.fields import ConfigError
from training.errors import Problem
from worker.store import submissions

MOST = 2**53 - 1
"""The largest number that JSON carries without loss everywhere; databases hold larger ones."""

Offset = Annotated[int, Query(ge=0, le=MOST)]
After = Annotated[int, Query(ge=0, le=MOST)]
Limit = Annotated[int, Query(ge=1, le=1000)]
Step = Annotated[int | None, Query(ge=-MOST, le=MOST)]
Finite = Annotated[float | None, Query(allow_inf_nan=False)]
MicroBatch = Annotated[int | None, Query(ge=1, le=2**20)]

Key = Annotated[
    str | None,
    Header(
        alias=submissions.HEADER,
        min_length=1,
        max_length=submissions.LONGEST_KEY,
        description="Any text of your choice. A repeated request with the same key answers the first run or sweep, for a day.",
    ),
]
"""The header of requests that queue something."""


class BodyForm(BaseModel):
    """The form of a JSON body, without other fields."""

    model_config = ConfigDict(extra="forbid")


class JsonRouter(APIRouter):
    """A router of such routes."""

    def __init__(self, **options: Any) -> None:
        super().__init__(route_class=_Route, **options)


class _Route(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def limited(request: Request) -> Response:
            return await handle(_Request(request.scope, request.receive))

        return limited


class _Request(Request):
    async def json(self) -> Any:
        """The body.

        Raises:
            JSONDecodeError: it is not valid JSON, or beyond a limit; FastAPI expects this class.
        """
        body = await self.body()
        try:
            return json_text.load(body)
        except json_text.JsonTextError as error:
            raise json.JSONDecodeError(str(error), "", 0) from None


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


def settings_object(values: Any) -> dict[str, Any]:
    """The body of a request that has to be an object of settings.

    Raises:
        ConfigError: it is something else.
    """
    if isinstance(values, dict):
        return values
    fix = 'Send the settings, for example {"model": "Qwen/Qwen3-0.6B", "data": "0123456789abcdef"}.'
    raise ConfigError([Problem("body", None, "is not a JSON object.", fix)])


def _is_binary(media: str) -> bool:
    return media in ("application/zip", "application/octet-stream")


async def malformed(_: Request, error: RequestValidationError) -> ErrorResponse:
    """The answer to values that have the wrong type or are out of bounds."""
    return ErrorResponse(422, *map(_problem, error.errors()))


def _problem(invalid: Mapping[str, Any]) -> Problem:
    place, *rest = (str(part) for part in invalid["loc"])
    unread = invalid["type"] == "json_invalid"
    field, value = (place, None) if unread or not rest else (_joined(rest), str(invalid["input"])[:200])
    message = f"is not valid JSON: {invalid['ctx']['error']}." if unread else f"{invalid['msg']}."
    return Problem(field, value, message, "Correct it and send the request again.")


def _joined(names: list[str]) -> str:
    """The name of a value inside others, without positions in lists."""
    return ".".join(name for name in names if not name.isdigit()) or names[0]
