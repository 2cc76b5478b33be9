"""The HTTP API: OpenAI's /v1/models, /v1/chat/completions and /v1/completions, vLLM's /tokenize, and for the worker that started
it /health, /load and /drain."""

import asyncio
import hmac
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException

from training.clients import CLIENT_HEADER, MOVED_HEADER, QUEUE_HEADER, ClientLeft, unless_gone
from training.errors import UserError, openai_form
from training.serving import loaded, prompts
from training.serving.forms import ChatRequest, CompletionRequest, LoadRequest, RequestError, TokenizeRequest
from training.serving.jobs import Emitted, Generator, Job, Moved, Token
from training.serving.loaded import Served
from training.serving.responses import ServedAnswer
from training.serving.templates import TemplateProcess

LoadAdapter = Callable[[Served, str, Path, Mapping[str, Any]], Served]
Arrived = tuple[int, Emitted]
"""What a job emitted, with the index of its prompt."""


class Api:
    """The models by name, and what answers for them."""

    def __init__(
        self,
        served: Mapping[str, Served],
        generator: Generator,
        token: str,
        load_adapter: LoadAdapter = loaded.load_adapter,
    ) -> None:
        self.served, self._token, self._load_adapter = dict(served), token, load_adapter
        self._generator, self._templates = generator, TemplateProcess()
        self._used = time.monotonic()

    @property
    def idle_seconds(self) -> float:
        """Seconds since the last request began or ended; 0 while one is answered."""
        if self._generator.pending:
            self._used = time.monotonic()
        return time.monotonic() - self._used

    def app(self) -> FastAPI:
        """The application. Every route needs the token, if there is one."""
        app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
        app.get("/health")(self.health)
        app.get("/v1/models")(self.models)
        app.get("/v1/models/{name:path}")(self.model)
        app.post("/v1/chat/completions", response_model=None)(self.chat)
        app.post("/v1/completions", response_model=None)(self.complete)
        app.post("/tokenize")(self.tokenize)
        app.post("/load")(self.load)
        app.post("/drain")(self.drain)
        _install_error_handlers(app)

        @app.middleware("http")
        async def authorized(request: Request, call: Callable[[Request], Any]) -> Response:
            given = request.headers.get("authorization", "").encode()
            if self._token and not hmac.compare_digest(given, f"Bearer {self._token}".encode()):
                return _error(
                    RequestError(401, "token", None, "is missing or invalid.", "Send it as Authorization: Bearer.")
                )
            response: Response = await call(request)
            return response

        return app

    async def health(self) -> dict[str, Any]:
        """How many requests are unanswered and how many answered, and since when none came."""
        generator = self._generator
        counts = {"pending": generator.pending, "answered": generator.answered}
        return {"status": "ok", "idle_seconds": self.idle_seconds} | counts

    async def load(self, form: LoadRequest) -> dict[str, Any]:
        """Loads an adapter between two answers, or takes another name for the base model."""
        if form.name not in self.served:
            base = next(iter(self.served.values()))
            if form.folder is None:
                added = replace(base, name=form.name, arguments=form.arguments)
            else:
                work = partial(self._load_adapter, base, form.name, form.folder, form.arguments)
                added = await asyncio.wrap_future(self._generator.call(work))
            self.served[form.name] = added
        return self._listed(self.served[form.name])

    async def drain(self) -> dict[str, Any]:
        """Takes no more requests; those that are refused may be sent again to another process."""
        self._generator.drain()
        return await self.health()

    async def model(self, name: str) -> dict[str, Any]:
        return self._listed(self._find(name))

    async def models(self) -> dict[str, Any]:
        """The models in OpenAI's form, with vLLM's max_model_len."""
        return {"object": "list", "data": [self._listed(one) for one in self.served.values()]}

    @staticmethod
    def _listed(one: Served) -> dict[str, Any]:
        return {"id": one.name, "object": "model", "created": 0, "owned_by": "lathe", "max_model_len": one.context}

    async def chat(self, form: ChatRequest, request: Request) -> Response:
        """Answers messages."""
        served = self._find(form.model)
        prompt = await self._rendered(served, form.messages, form)
        return await self._answer(form, served, [prompt], request)

    async def complete(self, form: CompletionRequest, request: Request) -> Response:
        """Continues each of its texts."""
        served = self._find(form.model)
        found = await asyncio.to_thread(lambda: [prompts.of_text(served, prompt) for prompt in form.prompt])
        return await self._answer(form, served, found, request)

    async def tokenize(self, form: TokenizeRequest) -> dict[str, Any]:
        """The tokens of a prompt, as this model gets them."""
        served = self._find(form.model)
        if (form.messages is None) == (form.prompt is None):
            raise RequestError(400, "messages", None, "needs exactly one of messages and prompt.", "Send one of them.")
        if form.messages is None:
            tokens = await asyncio.to_thread(prompts.of_text, served, form.prompt or "")
        else:
            tokens = await self._rendered(served, form.messages, form)
        answer = {"count": len(tokens), "max_model_len": served.context, "tokens": tokens}
        if form.return_token_strs:
            answer["token_strs"] = [served.tokenizer.decode([token]) for token in tokens]
        return answer

    async def _rendered(
        self, served: Served, messages: list[dict[str, Any]], form: ChatRequest | TokenizeRequest
    ) -> list[int]:
        tools, arguments = form.tools, form.chat_template_kwargs or {}
        return await asyncio.to_thread(prompts.of_messages, served, messages, tools, arguments, self._templates)

    def _find(self, name: str) -> Served:
        if name not in self.served:
            fix = f"Use one of {', '.join(self.served)}."
            raise RequestError(404, "model", name, "is not served here.", fix)
        return self.served[name]

    async def _answer(
        self,
        form: ChatRequest | CompletionRequest,
        served: Served,
        found: list[list[int]],
        request: Request,
    ) -> Response:
        """A choice for each of the prompts."""
        longest = [prompts.check_length(served, prompt, form) for prompt in found]
        loop, emitted = asyncio.get_running_loop(), asyncio.Queue[Arrived]()

        def emit(index: int, item: Emitted) -> None:
            loop.call_soon_threadsafe(emitted.put_nowait, (index, item))

        pairs, client = enumerate(zip(found, longest, strict=True)), request.headers.get(CLIENT_HEADER, "")
        answer = ServedAnswer(
            [Job(served, prompt, form, most, partial(emit, index), index, client) for index, (prompt, most) in pairs]
        )
        self._used = time.monotonic()
        for job in answer.jobs:
            self._generator.add(job)
        return await _answered(emitted, answer, request)


async def _answered(emitted: "asyncio.Queue[Arrived]", answer: ServedAnswer, request: Request) -> Response:
    """The answer, of a stream once it has begun: until then, it can be refused and its wait be told."""
    done = False
    try:
        if answer.job.request.stream:
            first = await unless_gone(request, emitted.get())
            if isinstance(first[1], RequestError):
                return _error(first[1])
            done, headers = True, {QUEUE_HEADER: f"{answer.waited:.2f}"}
            return StreamingResponse(_stream(first, emitted, answer), headers=headers, media_type="text/event-stream")
        await unless_gone(request, _gathered(emitted, answer))
    except ClientLeft:
        return Response(status_code=499)  # nobody reads it
    except RequestError as error:
        return _error(error)
    finally:
        if not done:
            answer.cancel()
    return JSONResponse(answer.whole(), headers={QUEUE_HEADER: f"{answer.waited:.2f}"})


async def _stream(first: Arrived, emitted: "asyncio.Queue[Arrived]", answer: ServedAnswer) -> AsyncIterator[str]:
    """Server-sent events. The jobs are cancelled when the client has gone, which closes the generator."""
    try:
        yield _event(answer.first())
        arrived: Arrived | None = first
        while not answer.is_whole:
            index, item = arrived or await emitted.get()
            arrived = None
            if isinstance(item, RequestError):
                yield _event(_error_body(item))
                break
            answer.add(index, item)
            job = answer.jobs[index]
            for chunk in [answer.chunk(job, item)] if isinstance(item, Token) else answer.last(job, item):
                yield _event(chunk)
        yield "data: [DONE]\n\n"
    finally:
        answer.cancel()


async def _gathered(emitted: "asyncio.Queue[Arrived]", answer: ServedAnswer) -> None:
    while not answer.is_whole:
        index, item = await emitted.get()
        if isinstance(item, RequestError):
            raise item
        answer.add(index, item)


def _event(chunk: dict[str, Any]) -> str:
    return f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n"


def _error(refused: RequestError) -> JSONResponse:
    headers = {MOVED_HEADER: "1"} if isinstance(refused, Moved) else None
    return JSONResponse(_error_body(refused), refused.status, headers)


def _error_body(refused: RequestError) -> dict[str, Any]:
    return openai_form(refused.status, refused.problem)


def _install_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(RequestError)
    async def refused(_: Request, problem: RequestError) -> JSONResponse:
        return _error(problem)

    @app.exception_handler(UserError)
    async def not_loaded(_: Request, error: UserError) -> JSONResponse:
        problem = error.problem
        return _error(RequestError(error.status, problem.field, problem.value, problem.message, problem.fix))

    @app.exception_handler(HTTPException)
    async def unknown(request: Request, problem: HTTPException) -> JSONResponse:
        message, path = f"is not served ({problem.detail}).", request.url.path
        return _error(RequestError(problem.status_code, "path", path, message, "Use the paths below /v1/."))

    @app.exception_handler(RequestValidationError)
    async def malformed(_: Request, problem: RequestValidationError) -> JSONResponse:
        first = problem.errors()[0]
        place = ".".join(str(part) for part in first["loc"] if part != "body") or "body"
        message = str(first["msg"]).removeprefix("Value error, ")
        value = None if first["type"] in ("missing", "json_invalid") else first.get("input")
        return _error(RequestError(400, place, value, f"{message}.", "Correct it and send the request again."))
