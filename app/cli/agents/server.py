"""The server of the tools, for the program of an agent that starts `lathe mcp`."""

import json
import sys
from collections.abc import Callable
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from app.cli.agents.entries import ENTRIES
from app.cli.agents.tools import CHANGING, TOOLS
from app.cli.options import explain
from training.errors import UserError
from worker.settings import ROOT

INSTRUCTIONS = (
    "Lathe fine-tunes language models. Usual order: add_data, check_run, start_run, show_run until it has ended, then ask_model, "
    "evaluate_run or export_run; diagnose says why a run failed. Tools that change something do it only with confirmed=true: show "
    "their preview to the user first."
)
_PACKAGE = "mcp"


def serve(entry: str | None) -> None:
    """Serves until the agent closes standard input; with `entry`, prints what that agent's configuration needs instead."""
    if entry is not None:
        click.echo(ENTRIES[entry].format(command=json.dumps(_command())), nl=False)
        return
    if find_spec(_PACKAGE) is None:
        fix = "Install it in the environment of Lathe: pip install 'lathe-workbench[mcp]'"
        raise UserError("mcp", None, "needs the package mcp, which is not installed.", fix)
    server().run("stdio")


def server() -> Any:
    """The server with all tools and documents."""
    from mcp.server import MCPServer
    from mcp.types import ToolAnnotations

    made = MCPServer("lathe", instructions=INSTRUCTIONS)
    for tool in TOOLS:
        changes = tool in CHANGING
        marks = ToolAnnotations(read_only_hint=not changes, destructive_hint=False, open_world_hint=False)
        made.add_tool(_told(tool), name=tool.__name__, annotations=marks)
    for file in sorted((ROOT / "docs").glob("*.md")):  # a wheel has none
        made.resource(f"lathe://docs/{file.stem}", name=file.stem, mime_type="text/markdown")(_document(file))
    return made


def _command() -> str:
    """The program `lathe` of this installation."""
    beside = Path(sys.executable).with_name("lathe")
    return str(beside) if beside.is_file() else "lathe"


def _document(file: Path) -> Callable[[], str]:
    def read() -> str:
        return file.read_text(encoding="utf-8")

    return read


def _told(tool: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """The tool, whose errors are answers: field, value, message and fix."""

    @wraps(tool)
    def call(**arguments: Any) -> dict[str, Any]:
        try:
            return tool(**arguments)
        except Exception as error:
            problems = explain(error)
            if problems is None:
                raise
            print(json.dumps([str(problem) for problem in problems]), file=sys.stderr)
            return {
                "error": [
                    {"field": one.field, "value": one.value, "message": one.message, "fix": one.fix} for one in problems
                ]
            }

    return call
