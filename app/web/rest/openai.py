"""OpenAI's API under /v1, behind Lathe's token: passes requests on to the process that serves the model, which a worker starts
if there is none. Loads no model itself.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from hashlib import sha256
from typing import Any
from urllib.parse import urlsplit

import httpx
from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.routing import Match, Route

from app.access import callers
from app.web.rest import application
from app.web.security import ErrorResponse, error
from training.addresses import is_loopback
from training.clients import ACCOUNT_ENDS, CLIENT_HEADER, MOVED_HEADER, QUEUE_HEADER, ClientLeft, unless_gone
from training.config import json_text
from training.errors import Problem, UserError, openai_form
from worker.machine.process_identity import hostname
from worker.serving import models, requests
from worker.store import database, served_models
from worker.store.tables import Run, ServedModel, ServedState

router = APIRouter(include_in_schema=False)

WAIT_SECONDS = 45.0
"""How long a request waits for a model that is being started or waits for its turn; then it is answered with 503 and Retry-After,
in time for a proxy that waits for a minute."""

POSITION_HEADER = "X-Lathe-Queue-Position"
"""The place in the queue of the models that a refused request waits for."""

_POLL_SECONDS = 0.25
_RETRY_SECONDS = 5
_TIMEOUT = httpx.Timeout(10, read=None)  # an answer may take as long as it takes; the client ends it by leaving


@router.get("/v1/models")
def list_models() -> dict[str, Any]:
    """The models that can be served, in OpenAI's form: results, checkpoints and bases of the newest runs."""
    return {"object": "list", "data": [_listed(name, run) for run, names in requests.offered() for name in names]}


@router.get("/v1/models/{name}", response_model=None)
def show_model(name: str) -> dict[str, Any] | Response:
    """One of the models that can be served, also of an older run than those listed."""
    try:
        with database.read() as session:
            run = models.run_of(session=session, name=name)
    except UserError as unknown:
        return ErrorResponse(404, unknown.problem)
    if name not in models.offered(run):
        return ErrorResponse(404, Problem("model", name, "cannot be served.", "GET /v1/models lists those that can."))
    return _listed(name, run)


def _listed(name: str, run: Run) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": int(run.created_at), "owned_by": run.owner}


@router.post("/v1/chat/completions")
@router.post("/v1/completions")
async def complete(request: Request) -> Response:
    """Answers with the model that the body names."""
    return await _pass_on(request, request.url.path)


@router.post("/v1/tokenize")
async def tokenize(request: Request) -> Response:
    """The tokens of a prompt, as the model gets them (vLLM's /tokenize)."""
    return await _pass_on(request, "/tokenize")


@router.api_route(
    "/v1/{path:path}", methods=["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"], response_model=None
)
def unknown_path(request: Request, path: str) -> Response:
    """The answer to other paths and methods, which would otherwise reach the pages."""
    routes = [route for module in application.modules("/v1") for route in application.router(module).routes]
    partly = [
        route for route in routes if isinstance(route, Route) and route.matches(request.scope)[0] is Match.PARTIAL
    ]
    allowed = sorted({method for route in partly for method in route.methods or ()})
    if not allowed:
        fix = "docs/playground.md and docs/fine-tuning-api.md list what there is."
        return error(404, "path", f"/v1/{path}", "is not part of the API.", fix)
    return error(405, "method", request.method, f"is not a method of /v1/{path}.", f"Use {' or '.join(allowed)}.")


async def _pass_on(request: Request, path: str) -> Response:
    body = await request.body()
    try:
        values = json_text.load(body)
        name = values["model"]
    except json_text.JsonTextError as invalid:
        fix = "Correct it and send the request again."
        return ErrorResponse(400, Problem("body", None, f"is not valid JSON: {invalid}.", fix))
    except (KeyError, TypeError):
        problem = Problem("model", None, "is missing.", "Send a JSON object with model; GET /v1/models lists them.")
        return ErrorResponse(400, problem)
    try:
        return await unless_gone(request, _answered(str(name), path, body, _client(request, values)))
    except ClientLeft:
        return Response(status_code=499)  # nobody reads it


def _client(request: Request, values: dict[str, Any]) -> str:
    """Who takes turns with others: an account, and within its turns each address, and each user for whom a program asks there."""
    user = values.get("safety_identifier") or values.get("user") or ""
    asker = request.client.host if request.client else "", user
    return f"{_hashed(callers.current().name)}{ACCOUNT_ENDS}{_hashed(asker)}"


def _hashed(value: Any) -> str:
    return sha256(json.dumps(value, default=str).encode()).hexdigest()


async def _answered(name: str, path: str, body: bytes, client: str) -> Response:
    """The answer of the process that serves the model; if that makes room for others, of the one that serves it next."""
    began, deadline = time.monotonic(), time.monotonic() + WAIT_SECONDS
    while True:
        try:
            served = await _ready(name, deadline)
        except UserError as unknown:
            return ErrorResponse(404, unknown.problem)
        if not _answers(served, name):
            return await run_in_threadpool(_not_ready, served)
        host = (served.holder or "").partition(":")[0]
        if is_loopback(urlsplit(f"//{served.address}").hostname or "") and host != hostname():
            fix = f"Set LATHE_SERVE_HOST of the worker on {host} to an address that this server can reach."
            return ErrorResponse(
                503, Problem("model", name, f"is served on {host}, on its loopback address only.", fix)
            )
        answer = await _forward(served, path, body, client, time.monotonic() - began)
        if answer is not None:
            return answer
        deadline = time.monotonic() + WAIT_SECONDS


async def _ready(name: str, deadline: float) -> ServedModel:
    """The served model that answers for `name`, ready unless that takes too long."""
    owner = callers.current().name
    served = await run_in_threadpool(requests.ask_for_one, name, owner)
    while not _answers(served, name) and time.monotonic() < deadline:
        await asyncio.sleep(_POLL_SECONDS)
        served = await run_in_threadpool(_again, served.id)
        if served.state is ServedState.ENDED and served.ready_at is None:
            break  # it could not be started
        if served.end_request or name not in (*served.models, *served.loads) or served.state is ServedState.ENDED:
            served = await run_in_threadpool(requests.ask_for_one, name, owner)
    return served


def _answers(served: ServedModel, name: str) -> bool:
    return served.state is ServedState.READY and bool(served.address) and name in served.models


def _again(served_id: str) -> ServedModel:
    with database.read() as session:
        return served_models.get(session=session, served_id=served_id)


def _not_ready(served: ServedModel) -> Response:
    with database.read() as session:
        place = served_models.position(session=session, served=served)
    ended = served.state is ServedState.ENDED or (served.state is ServedState.READY and not served.loads)
    state = "ended" if ended else "is being loaded" if served.loads else f"is {served.state.value}"
    message = f"{state}{f' as number {place} in the queue' if place else ''}. {served.reason}".strip()
    fix = "Send the request again." if ended else f"Send the request again in {_RETRY_SECONDS} s."
    answer = ErrorResponse(503, Problem("model", ", ".join([*served.models, *served.loads]), message, fix))
    answer.headers["Retry-After"] = str(_RETRY_SECONDS)
    if place:
        answer.headers[POSITION_HEADER] = str(place)
    return answer


async def _forward(served: ServedModel, path: str, body: bytes, who: str, waited: float) -> Response | None:
    """The answer of a process; None if it makes room for other models, and the request can be sent again. `waited`: for the
    process, in seconds."""
    client = httpx.AsyncClient(base_url=f"http://{served.address}", timeout=_TIMEOUT, trust_env=False)
    headers = {"Authorization": f"Bearer {served.secret}", "Content-Type": "application/json", CLIENT_HEADER: who}
    try:
        answer = await client.send(client.build_request("POST", path, content=body, headers=headers), stream=True)
    except httpx.HTTPError:
        await client.aclose()
        served = await run_in_threadpool(_after_failure, served.id)
        return None if served.end_request == served_models.TURN else await run_in_threadpool(_not_ready, served)
    except asyncio.CancelledError:  # the client has left: closing the connection cancels the generation
        await client.aclose()
        raise
    if MOVED_HEADER in answer.headers:
        await answer.aclose()
        await client.aclose()
        return None
    media = answer.headers.get("content-type", "application/json")
    waited += float(answer.headers.get(QUEUE_HEADER, 0))
    passed_on = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", QUEUE_HEADER: f"{waited:.2f}"}
    return StreamingResponse(_parts(client, answer), answer.status_code, passed_on, media_type=media)


async def _parts(client: httpx.AsyncClient, answer: httpx.Response) -> AsyncIterator[bytes]:
    """The parts of an answer as they come. Closing the connection, when the client has gone, cancels the generation."""
    try:
        async for part in answer.aiter_raw():
            yield part
    except httpx.HTTPError:  # the process was killed: a stream ends with an error as OpenAI's do
        problem = Problem("model", None, "The process that served it ended during the answer.", "Start it again.")
        yield b"data: " + json.dumps(openai_form(503, problem)).encode() + b"\n\n"
    finally:
        await answer.aclose()
        await client.aclose()


def _after_failure(served_id: str) -> ServedModel:
    """The row after its process could not be reached: its worker needs a moment to see the end."""
    deadline = time.monotonic() + 2 * _POLL_SECONDS * 8
    served = _again(served_id)
    while served.state is ServedState.READY and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        served = _again(served_id)
    return served
