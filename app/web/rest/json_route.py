"""Routes that read a JSON body, within the limits of training/config/json_text.py."""

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute

from training.config import json_text


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
