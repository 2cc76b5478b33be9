"""The routes of the REST API, and an application of some of them for commands, without middleware, pages and Gradio."""

from functools import cache
from importlib import import_module
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError

from app.web.rest.errors import malformed
from training.parts import is_here

_ALL = {
    "app.web.rest.runs": "runs healthz queue",
    "app.web.rest.results": "adapter model merged checkpoint card answers outputs archive config builds",
    "app.web.live": "live log log-window plots pages",
    "app.web.rest.records": "log events samples stream archives",
    "app.web.rest.comparing": "compare",
    "app.web.rest.sweeps": "sweeps",
    "app.web.rest.evaluations": "evaluations rewards suites",
    "app.web.rest.before_run": "checks forecasts renderings targets",
    "app.web.rest.translations": "imports",
    "app.web.rest.datasets": "datasets imports files",
    "app.web.rest.tokens": "tokens",
    "app.web.rest.diagnoses": "diagnosis diagnoses",
    "app.web.rest.playground": "served prompt-sets prompts",
    "app.web.rest.openai_files": "v1",
    "app.web.rest.openai_jobs": "v1",
    "app.web.rest.openai_graders": "v1",
    "app.web.rest.openai": "v1",
    "app.web.rest.system": "system",
    "app.web.rest.users": "users shares",
    "app.web.rest.settings": "settings notifications tour",
}
ROUTERS = {module: words for module, words in _ALL.items() if is_here(module)}
"""The modules with routes, in the order in which their paths are compared, and a word in each path of theirs."""


def router(module: str) -> APIRouter:
    """The routes of a module, which is imported."""
    found: APIRouter = import_module(module).router
    return found


def application(path: str) -> FastAPI:
    """An application with the routes that a path can mean. Their caller is the user who runs the server.

    What a route raises is raised to the caller, but for malformed parameters, which are answered as by the server.
    """
    return _of(modules(path))


def modules(path: str) -> tuple[str, ...]:
    """The modules with routes that a path can mean."""
    words = {part.partition(".")[0] for part in path.split("/")}
    return tuple(module for module, named in ROUTERS.items() if words & set(named.split()))


@cache
def _of(modules: tuple[str, ...]) -> FastAPI:
    handlers: Any = {RequestValidationError: malformed, Exception: _raised}
    made = FastAPI(openapi_url=None, exception_handlers=handlers)
    for module in modules:
        made.include_router(router(module))
    return made


async def _raised(_: Request, error: Exception) -> None:
    raise error
