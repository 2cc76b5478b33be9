"""What routes share: bounded parameters, a session that reads, JSON bodies within the limits of training/config/json_text.py,
and the answer to malformed requests.

A route answers with a document of `app/documents`, which its return type names, or declares with `sends` what else it sends.
"""

import json
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.dependencies.utils import get_flat_params
from fastapi.params import Query as QueryParameter
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field
from sqlmodel import Session
from starlette.exceptions import HTTPException

from app.access import callers
from training.config import json_text
from training.config.fields import ConfigError
from training.errors import Problem, UserError
from training.nearest import nearest
from worker.store import database, submissions

MOST = 2**53 - 1
"""The largest number that JSON carries without loss everywhere; databases hold larger ones."""

NUL_ESCAPE = rb"\u0000"

Offset = Annotated[int, Query(ge=0, le=MOST)]
After = Annotated[int, Query(ge=0, le=MOST)]
Limit = Annotated[int, Query(ge=1, le=1000)]
Step = Annotated[int | None, Query(ge=-MOST, le=MOST)]
Group = Annotated[str, Query(max_length=200, description="model, data, method, sweep, tag, owner, status or a setting")]
Ids = Annotated[str, Query(max_length=4000, description="Ids of runs, separated by commas.")]
SearchText = Annotated[
    str, Query(max_length=2000, description="Only those with these words; docs/api.md has the filters.")
]
ShortText = Annotated[str, Field(max_length=200)]
PathText = Annotated[str, Field(max_length=4096)]
"""A path on the server, or an id."""
ShortQuery = Annotated[str | None, Query(max_length=200)]
PathQuery = Annotated[str | None, Query(max_length=4096)]
MOST_NAMED = 1000
"""Users that a request may name."""
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


def _reading() -> Iterator[Session]:
    with database.read() as session:
        yield session


Reading = Annotated[Session, Depends(_reading, scope="function")]
"""A session of routes that only read; it ends before the answer is sent."""


class BodyForm(BaseModel):
    """The form of a JSON body, without other fields."""

    model_config = ConfigDict(extra="forbid")


class JsonRouter(APIRouter):
    """A router of such routes. Values that a document does not set are left out of the answer."""

    def __init__(self, **options: Any) -> None:
        super().__init__(route_class=_Route, **options)


class _Route(APIRoute):
    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options | {"response_model_exclude_unset": True})
        if isinstance(self.response_model, type) and issubclass(self.response_model, BaseModel):
            self.response_description = " ".join((self.response_model.__doc__ or "").split("\n\n")[0].split())

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        given = (field for field in get_flat_params(self.dependant) if isinstance(field.field_info, QueryParameter))
        names = [field.alias for field in given]

        async def limited(request: Request) -> Response:
            _check_names(request.query_params, names)
            try:
                return await handle(_Request(request.scope, request.receive))
            except HTTPException as error:  # FastAPI's for what `json` raises
                if isinstance(error.__cause__, UserError):
                    raise error.__cause__ from None
                raise

        return limited


def _check_names(given: Mapping[str, str], names: Sequence[str]) -> None:
    """Checks that a query has no other parameters, since one that is left out without a word would make another request of it, and
    no NUL characters.

    Raises:
        UserError: one has a name that the route does not know, or a NUL character.
    """
    for name, value in given.items():
        if name not in names:
            close = nearest(name, names)
            fix = (
                f"Did you mean {close[0]}?" if close else f"It takes {', '.join(names)}." if names else "Leave it out."
            )
            raise UserError(name, value[:200], "is not a parameter of this request.", fix)
        if "\0" in value:
            raise UserError(name, value[:200], json_text.HAS_NUL, json_text.REMOVE_NUL)


class _Request(Request):
    async def json(self) -> Any:
        """The body, without NUL characters, and without code of a caller who may send none.

        Raises:
            UserError: it has one of these.
            JSONDecodeError: it is not valid JSON, or beyond a limit; FastAPI expects this class.
        """
        body = await self.body()
        try:
            values = json_text.load(body)
        except json_text.JsonTextError as error:
            raise json.JSONDecodeError(str(error), "", 0) from None
        if NUL_ESCAPE in body and (field := json_text.nul(values)) is not None:
            raise UserError(field or "body", None, json_text.HAS_NUL, json_text.REMOVE_NUL)
        callers.check_sent(values)
        return values


def sends(media: str, description: str) -> dict[str, Any]:
    """Options of a route that sends a file or a stream."""
    content = {media: {"schema": {"type": "string", "format": "binary"} if _is_binary(media) else {"type": "string"}}}
    described = {200: {"content": content, "description": description}}
    return {"response_model": None, "response_class": Response, "responses": described}


def settings_object(values: Any) -> dict[str, Any]:
    """The body of a request that has to be an object of settings. Raises ConfigError if it is something else."""
    if isinstance(values, dict):
        return values
    fix = 'Send the settings, for example {"model": "Qwen/Qwen3-0.6B", "data": "0123456789abcdef"}.'
    raise ConfigError([Problem("body", None, "is not a JSON object.", fix)])


def _is_binary(media: str) -> bool:
    return media in ("application/zip", "application/octet-stream")
