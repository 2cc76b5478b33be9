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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.errors import UserError
from training.ranks.stopping import die_with_parent
from training.redaction import redact_output

if TYPE_CHECKING:
    from uvicorn import Server

    from training.serving.web import Api

TOKEN_VARIABLE = "LATHE_SERVING_TOKEN"  # noqa: S105 a name
_IDLE_CHECK_SECONDS = 1.0


def main(arguments: Sequence[str]) -> int:
    """Serves until it is idle. Returns the exit status."""
    options = _options(arguments)
    try:
        api = _load(options)
    except UserError as error:
        problem = error.problem
        told = {"field": problem.field, "value": problem.value, "message": problem.message, "fix": problem.fix}
        print(json.dumps({"error": told}), flush=True)
        return 1
    listening = socket.create_server((options.host, options.port))
    _serve(api, listening, options.idle)
    return 0


def _load(options: argparse.Namespace) -> "Api":
    _leave_out_libraries(options)
    from training.serving.loaded import Base, load
    from training.serving.web import Api

    base = Base(options.base, options.model_name or options.base, options.revision, options.dtype, options.quantization)
    adapters, models = _folders("adapter", options.adapter), _folders("model", options.model)
    names = [base.name, *(name for name, _ in (*options.adapter, *options.model))]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UserError("name", twice, "is the name of several models.", "Give each a name of its own.")
    template = {name: json.loads(text) for name, text in options.template_arguments}
    return Api(load(base, adapters, models, template), os.environ.get(TOKEN_VARIABLE, ""))


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
    return {name: Path(folder) for name, folder in pairs}


def _serve(api: "Api", listening: socket.socket, idle_seconds: float) -> None:
    import uvicorn

    config = uvicorn.Config(api.app(), log_level="warning", ws="none", server_header=False, timeout_graceful_shutdown=2)
    server = uvicorn.Server(config)
    if idle_seconds:
        threading.Thread(target=_end_when_idle, args=(api, server, idle_seconds), name="idle", daemon=True).start()
    print(json.dumps({"port": listening.getsockname()[1], "models": list(api.served)}), flush=True)
    server.run(sockets=[listening])


def _end_when_idle(api: "Api", server: "Server", idle_seconds: float) -> None:
    while api.idle_seconds < idle_seconds:
        time.sleep(min(_IDLE_CHECK_SECONDS, idle_seconds / 4))
    server.should_exit = True


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    from training.config.choices import Quantization

    parser = argparse.ArgumentParser(prog="training.serving", description="Serves models as OpenAI's API does.")
    parser.add_argument("base", metavar="MODEL", help="folder or hub id of the base model")
    parser.add_argument("--model-name", help="name of the base model in requests")
    parser.add_argument("--revision", default="main", help="of the base model on the hub")
    parser.add_argument("--adapter", action="append", default=[], type=_pair, metavar="NAME=FOLDER")
    parser.add_argument("--model", action="append", default=[], type=_pair, metavar="NAME=FOLDER", help="a whole model")
    parser.add_argument("--template-arguments", action="append", default=[], type=_pair, metavar="NAME=JSON")
    parser.add_argument("--dtype", default="auto", choices=("auto", "bf16", "fp16", "fp32"))
    parser.add_argument("--quantization", default="none", choices=[one.value for one in Quantization])
    parser.add_argument("--host", default="127.0.0.1")
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
