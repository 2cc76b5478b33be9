"""Serves models: `python -m training.serving MODEL [--adapter NAME=FOLDER ...] [--model NAME=FOLDER ...]`.

Prints one JSON line when it is ready, {"port": ..., "models": [...]}, or {"error": {field, value, message, fix}} and exits with
status 1. It ends with its parent, and with status 0 after `--idle` seconds without a request. The environment variable
LATHE_SERVING_TOKEN, if set, must come with each request as a bearer token.
"""

import argparse
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.addresses import family, loopback
from training.errors import UserError
from training.model_info.folder import check_weights
from training.ranks.stopping import die_with_parent
from training.redaction import redact_output

if TYPE_CHECKING:
    import uvicorn

    from training.serving.web import Api
    from training.vllm.server import Server

TOKEN_VARIABLE = "LATHE_SERVING_TOKEN"  # noqa: S105 a name
_IDLE_CHECK_SECONDS = 1.0


def main(arguments: Sequence[str]) -> int:
    """Serves until it is idle. Returns the exit status."""
    options = _options(arguments)
    try:
        with ExitStack() as running:
            return _serve(*_load(options, running), options)
    except UserError as error:
        _tell(error)
        return 1


def _tell(error: UserError) -> None:
    problem = error.problem
    told = {"field": problem.field, "value": problem.value, "message": problem.message, "fix": problem.fix}
    print(json.dumps({"error": told}), flush=True)


def _load(options: argparse.Namespace, running: ExitStack) -> "tuple[Api, Server | None, str]":
    """The models, the process of vLLM if it answers for them, and why it does not if it should."""
    _leave_out_libraries(options)
    from training.serving.by_vllm import load as load_by_vllm
    from training.serving.by_vllm import load_adapter
    from training.serving.generation import generate
    from training.serving.jobs import Generator
    from training.serving.loaded import Base, load
    from training.serving.web import Api
    from training.vllm.limits import NotLoaded
    from training.vllm.server import command

    base = Base(options.base, options.model_name or options.base, options.revision, options.dtype, options.quantization)
    adapters, models = _folders("adapter", options.adapter), _folders("model", options.model)
    names = [base.name, *(name for name, _ in (*options.adapter, *options.model))]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UserError("name", twice, "is the name of several models.", "Give each a name of its own.")
    template = {name: json.loads(text) for name, text in options.template_arguments}
    token, note = os.environ.get(TOKEN_VARIABLE, ""), ""
    if command():
        try:
            served, generator, server = load_by_vllm(base, adapters, models, template, running)
            return Api(served, generator, token, partial(load_adapter, server)), server, ""
        except NotLoaded as reason:
            note = f"transformers answers: {reason}"
    return Api(load(base, adapters, models, template), Generator(generate), token), None, note


def _leave_out_libraries(options: argparse.Namespace) -> None:
    """Before transformers is imported."""
    from training.config.run_config import RunConfig
    from training.unused_libraries import leave_out

    models = [options.base, *(folder for _, folder in options.model)]
    leave_out(*(RunConfig(model=model, data="none", quantization=options.quantization) for model in models))


def _folders(field: str, pairs: list[tuple[str, str]]) -> dict[str, Path]:
    for name, folder in pairs:
        if not Path(folder).is_dir():
            raise UserError(field, f"{name}={folder}", "is not a folder.", "Give the folder that contains the weights.")
        check_weights(Path(folder), field, f"{name}={folder}")
    return {name: Path(folder) for name, folder in pairs}


def _serve(api: "Api", vllm: "Server | None", note: str, options: argparse.Namespace) -> int:
    import uvicorn

    listening = socket.create_server((options.host, options.port), family=family(options.host))
    config = uvicorn.Config(api.app(), log_level="warning", ws="none", server_header=False, timeout_graceful_shutdown=2)
    server, lost = uvicorn.Server(config), list[UserError]()
    if options.idle:
        threading.Thread(target=_end_when_idle, args=(api, server, options.idle), name="idle", daemon=True).start()
    if vllm:
        threading.Thread(target=_end_with, args=(vllm, server, lost), name="vllm", daemon=True).start()
    ready = {"port": listening.getsockname()[1], "models": list(api.served)}
    print(json.dumps(ready | ({"note": note} if note else {})), flush=True)
    server.run(sockets=[listening])
    for error in lost:
        raise error
    return 0


def _end_with(vllm: "Server", server: "uvicorn.Server", lost: list[UserError]) -> None:
    lost.append(vllm.ended())
    server.should_exit = True


def _end_when_idle(api: "Api", server: "uvicorn.Server", idle_seconds: float) -> None:
    while api.idle_seconds < idle_seconds:
        time.sleep(min(_IDLE_CHECK_SECONDS, idle_seconds / 4))
    server.should_exit = True


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    from training.config.choices import Precision, Quantization

    parser = argparse.ArgumentParser(prog="training.serving", description="Serves models as OpenAI's API does.")
    parser.add_argument("base", metavar="MODEL", help="folder or hub id of the base model")
    parser.add_argument("--model-name", help="name of the base model in requests")
    parser.add_argument("--revision", default="main", help="of the base model on the hub")
    parser.add_argument("--adapter", action="append", default=[], type=_pair, metavar="NAME=FOLDER")
    parser.add_argument("--model", action="append", default=[], type=_pair, metavar="NAME=FOLDER", help="a whole model")
    parser.add_argument("--template-arguments", action="append", default=[], type=_pair, metavar="NAME=JSON")
    parser.add_argument("--dtype", default=Precision.AUTO.value, choices=[one.value for one in Precision])
    parser.add_argument("--quantization", default="none", choices=[one.value for one in Quantization])
    parser.add_argument("--host", default=loopback())
    parser.add_argument("--port", type=int, default=0, help="0: a free one")
    parser.add_argument("--idle", type=float, default=0, help="seconds without a request after which to end; 0: never")
    return parser.parse_args(arguments)


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not (name and separator and value):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def _start() -> Any:
    die_with_parent()
    redact_output()
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    _start()
