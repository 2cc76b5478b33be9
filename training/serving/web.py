"""The HTTP API: OpenAI's /v1/models, /v1/chat/completions and /v1/completions, vLLM's /tokenize, and /health."""

import asyncio
import hmac
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException

from training.client_left import ClientLeft, unless_gone
from training.errors import openai_form
from training.serving import prompts
from training.serving.forms import ChatRequest, CompletionRequest, RequestError, TokenizeRequest
from training.serving.generation import Emitted, Generator, Job, Token
from training.serving.loaded import Served
from training.serving.responses import Answer
from training.serving.templates import TemplateProcess

Arrived = tuple[int, Emitted]
"""What a job emitted, with the index of its prompt."""


class Api:
    """The models by name, and what answers for them."""

    def __init__(self, served: Mapping[str, Served], generator: Generator, token: str) -> None:
        self.served, self._token = served, token
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
        """How many requests are unanswered, and since when none came."""
        return {"status": "ok", "pending": self._generator.pending, "idle_seconds": self.idle_seconds}

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

        pairs = enumerate(zip(found, longest, strict=True))
        answer = Answer(
            [Job(served, prompt, form, most, partial(emit, index), index) for index, (prompt, most) in pairs]
        )
        self._used = time.monotonic()
        for job in answer.jobs:
            self._generator.add(job)
        if form.stream:
            return StreamingResponse(_stream(emitted, answer), media_type="text/event-stream")
        return await _whole(emitted, answer, request)


async def _stream(emitted: "asyncio.Queue[Arrived]", answer: Answer) -> AsyncIterator[str]:
    """Server-sent events. The jobs are cancelled when the client has gone, which closes the generator."""
    try:
        yield _event(answer.first())
        while not answer.is_whole:
            index, item = await emitted.get()
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


async def _whole(emitted: "asyncio.Queue[Arrived]", answer: Answer, request: Request) -> Response:
    try:
        await unless_gone(request, _gathered(emitted, answer))
    except ClientLeft:
        return Response(status_code=499)  # nobody reads it
    except RequestError as error:
        return _error(error)
    finally:
        answer.cancel()
    return JSONResponse(answer.whole())


async def _gathered(emitted: "asyncio.Queue[Arrived]", answer: Answer) -> None:
    while not answer.is_whole:
        index, item = await emitted.get()
        if isinstance(item, RequestError):
            raise item
        answer.add(index, item)


def _event(chunk: dict[str, Any]) -> str:
    return f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n"


def _error(refused: RequestError) -> JSONResponse:
    return JSONResponse(_error_body(refused), refused.status)


def _error_body(refused: RequestError) -> dict[str, Any]:
    return openai_form(refused.status, refused.problem)


def _install_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(RequestError)
    async def refused(_: Request, problem: RequestError) -> JSONResponse:
        return _error(problem)

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
