"""The web server: our middleware around Gradio's pages and our own routes."""

import asyncio
import gc
import os
import shutil
import socket
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

import psutil
from fastapi import FastAPI, Request
from starlette.middleware.cors import CORSMiddleware

from app.access import callers, server_token
from app.access.identity import Identity
from app.access.uploads import FOLDER, patch_gradio_uploads
from app.web.sessions import keep_no_values
from training.redaction import change_output, printable
from worker.settings import Settings, get_settings, name_unknown_variables

if TYPE_CHECKING:
    import uvicorn

    from app.web.listening import Limits

Result = TypeVar("Result")

QUEUE_SECONDS = 0.02
"""How often Gradio looks for waiting calls."""


def create_app(settings: Settings | None = None) -> FastAPI:
    """The web application: pages at /, /new and /run, the REST API under /api, /healthz."""
    settings = settings or get_settings()
    uploads = _own_upload_folder(settings.uploads_dir)
    _prepare_gradio(uploads)
    from app import pages
    from app.pages.common.view import unknown
    from app.web import assets, authentication, caller_turns, live, middleware, security, upload_quota
    from app.web.rest import application, errors, openapi, reference, users

    app = FastAPI(title="Lathe", docs_url=None, redoc_url=None, openapi_url=openapi.DOCUMENT_PATH)
    openapi.install(app)
    app.state.uploads = uploads
    app.state.settings = settings
    app.state.feeds = live.Feeds()
    server_token.server_token(settings)  # creates the token if there is none
    for router in (*map(application.router, application.ROUTERS), reference.router, assets.router):
        app.include_router(router, responses=openapi.ERRORS)
    for router in pages.routers():
        app.include_router(router)
    app.include_router(users.links)
    app.include_router(errors.router)
    errors.install(app)
    rules = security.Rules.of(settings)
    # The last added middleware runs first. Gradio adds no CORS rules if the parent has a CORSMiddleware.
    app.add_middleware(
        CORSMiddleware,
        allow_origins=sorted(rules.origins),
        allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
        allow_headers=["Authorization", "Content-Type", "Idempotency-Key"],
    )
    app.state.leaving = asyncio.Event()
    app.add_middleware(middleware.Streams, leaving=app.state.leaving, identity=Identity(settings))
    app.add_middleware(middleware.GradioCalls, uploads=uploads, pages=lambda: app.state.blocks)
    app.add_middleware(upload_quota.UploadQuota, folder=uploads)
    app.add_middleware(security.BodyLimit, upload_limit=settings.upload_limit_bytes)
    app.add_middleware(security.Gate, rules=rules, unknown=unknown)
    app.add_middleware(caller_turns.CallerTurns)
    app.add_middleware(middleware.RequestLimits, most=settings.connections)
    app.add_middleware(authentication.Authentication, rules=rules, settings=settings)
    app.add_middleware(security.Hosts, rules=rules)
    app.add_middleware(middleware.BrowserRules)
    app.add_middleware(middleware.Language)
    app.add_middleware(middleware.Turns)
    with warnings.catch_warnings():
        # Gradio warns for every app with several pages, even with ssr_mode=False.
        warnings.filterwarnings("ignore", "SSR mode is not supported", UserWarning)
        return within_event_loop(lambda: _mount(app, settings))


def _mount(app: FastAPI, settings: Settings) -> FastAPI:
    import gradio as gr

    from app import pages
    from app.web.middleware import refuse_invalid_values
    from app.web.theme import theme

    blocks = pages.build()
    app.state.blocks = blocks
    # Gradio checks file paths only if this is set; `launch` sets it, mounting does not.
    blocks.has_launched = True
    refuse_invalid_values(blocks)
    # Gradio looks for waiting calls every millisecond, which takes 8% of a core of an idle server.
    blocks._queue.sleep_when_free = blocks._queue.progress_update_sleep_when_free = QUEUE_SECONDS
    mounted: FastAPI = gr.mount_gradio_app(
        app,
        blocks,
        path="/",
        server_name=settings.host,
        server_port=settings.port,
        footer_links=[],
        run_history=False,
        auth_dependency=signed_in,
        show_error=False,
        max_file_size=settings.upload_limit_bytes,
        ssr_mode=False,
        enable_monitoring=False,
        mcp_server=False,
        theme=theme(),
    )
    return mounted


def signed_in(_: Request) -> str | None:
    """The caller's name, for Gradio; the authentication has already identified the caller."""
    return callers.current().name


def main() -> None:
    """Serves until it is stopped."""
    from app.web.listening import Limits, Server, allow_many_sockets
    from worker.store import database

    change_output(printable)  # tracebacks contain what a request has sent
    settings = get_settings()
    name_unknown_variables()
    server_token.check_listening(settings)
    database.migrate()
    allow_many_sockets()
    app = create_app(settings)
    gc.collect()
    gc.freeze()  # else a collection of Gradio's and pydantic's objects stops every answer for half a second
    limits = Limits(settings.request_seconds, max(settings.connections // 2, 1), settings.connections)
    Server(_server_config(app, settings, limits), app.state.leaving, limits).run()


def _server_config(app: FastAPI, settings: Settings, limits: "Limits") -> "uvicorn.Config":
    """The configuration of uvicorn. The authentication reads a proxy's headers, not uvicorn."""
    import uvicorn

    from app.web.listening import Connection

    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        backlog=socket.SOMAXCONN,  # while the queue is full, clients try again after one, three and seven seconds
        loop="asyncio",  # uvloop does not call Listener.accept
        http=cast("type[asyncio.Protocol]", partial(Connection, limits=limits)),
        ws="none",
        proxy_headers=False,
        log_level="error",  # anybody can send requests that cause warnings and fill the log
        server_header=False,
        timeout_graceful_shutdown=5,
    )


def within_event_loop(make: Callable[[], Result]) -> Result:
    """Calls `make` inside an event loop; without a running one, Gradio opens a loop that is never closed."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(_made(make))
    return make()


async def _made(make: Callable[[], Result]) -> Result:
    return make()


def _prepare_gradio(uploads: Path) -> None:
    """Sets Gradio's environment variables: no history in localStorage, no analytics, uploads into our folder."""
    os.environ["GRADIO_RUN_HISTORY"] = "False"
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["GRADIO_MCP_SERVER"] = "False"
    os.environ[FOLDER] = str(uploads)
    patch_gradio_uploads()
    keep_no_values()


def _own_upload_folder(uploads: Path) -> Path:
    """A new folder for this process's uploads; removes the folders of processes that have ended."""
    uploads.mkdir(mode=0o700, parents=True, exist_ok=True)
    host = socket.gethostname()
    for folder in uploads.glob(f"{host}-*"):
        pid = folder.name.removeprefix(f"{host}-")
        if pid == str(os.getpid()) or not pid.isdigit() or not psutil.pid_exists(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)
    own = uploads.resolve() / f"{host}-{os.getpid()}"
    own.mkdir(mode=0o700)
    return own


if __name__ == "__main__":
    main()
