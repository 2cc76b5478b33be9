"""Commands that messages, help and documents name: each is parsed by the real command line."""

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest
from paths import ROOT

from app.cli.__main__ import main

SOURCES = (
    *((folder, f"*.{ending}") for folder in ("app", "worker", "training") for ending in ("py", "toml", "html", "json")),
    ("docs", "*.md"),
    (".github", "*.yml"),
)
QUOTED = re.compile(r"`{1,2}lathe ([^`]+)`")
BARE = re.compile(r"(?<![`\w./@-])lathe ((?:[a-z][a-z-]*)(?: [a-z][a-z-]*)?)(?![\w-])")
"""After "Fix: " and the like: a command and, for a group, its command; what follows may be prose."""
LINE = re.compile(r"^    (?:\$ )?lathe (.+?)(?:  .*)?$", re.MULTILINE)
PLACEHOLDER = re.compile(r"\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}")


def problem(words: list[str]) -> str:
    """What the command line says of these words; empty if it takes them. Values are placeholders, and may be left out."""
    command: click.Command = main
    name, parent = "lathe", None
    try:
        while True:
            context = command.make_context(name, words, parent=parent)
            words = [*context._protected_args, *context.args]
            if not isinstance(command, click.Group) or not words:
                return ""
            given, found, words = command.resolve_command(context, words)
            assert given and found
            name, command, parent = given, found, context
    except (click.MissingParameter, click.BadOptionUsage, click.exceptions.Exit, click.exceptions.NoArgsIsHelpError):
        return ""
    except click.BadParameter as error:
        chosen = isinstance(error.param, click.Parameter) and isinstance(error.param.type, click.Choice)
        return error.message if chosen and not re.search(r"'[A-Z]+'", error.message) else ""
    except click.UsageError as error:
        return "" if error.message.endswith("argument (X)") else error.message


def words_of(command: str) -> list[str]:
    """A command as it is written, with optional parts and placeholders."""
    plain = PLACEHOLDER.sub("X", command).replace("[", "").replace("]", "").replace("...", "")
    plain = re.sub(r"--(?:[A-Z]+ [A-Z]+|help)|^[A-Z]+", "", plain)  # what a reader fills in, and what prints help
    return shlex.split(re.split(r" [|><&] ?|;", plain)[0].replace("'", ""))


@cache
def texts() -> list[tuple[str, str]]:
    files = [path for folder, pattern in SOURCES for path in sorted((ROOT / folder).rglob(pattern))]
    files += [
        ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docker-compose.yml", ".env.example")
    ]
    return [(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")) for path in files]


def mentions(pattern: re.Pattern[str], only: str = "") -> Iterator[tuple[str, str]]:
    for name, text in texts():
        if Path(name).suffix == only or not only:
            yield from ((name, found[1]) for found in pattern.finditer(text))


@pytest.mark.parametrize(("pattern", "only", "least"), [(QUOTED, "", 150), (LINE, ".md", 60)])
def test_every_command_that_a_text_names_exists_with_its_options(
    pattern: re.Pattern[str], only: str, least: int
) -> None:
    found = list(mentions(pattern, only))
    assert len(found) > least
    wrong = {(name, command): problem(words_of(command)) for name, command in found}
    assert {where: said for where, said in wrong.items() if said} == {}


def test_every_command_in_the_fix_of_a_message_exists() -> None:
    found = list(mentions(BARE, ".py"))
    assert len(found) > 40
    wrong = {}
    for name, command in found:
        words = command.split()
        group = isinstance(main.commands.get(words[0]), click.Group)
        if said := problem(words if group else words[:1]):
            wrong[name, command] = said
    assert wrong == {}


@pytest.mark.parametrize(
    "command", ["check FILE", "dataset render", "disk", "system --fre KIND", "system --free nothing"]
)
def test_a_command_that_does_not_exist_is_found(command: str) -> None:
    assert problem(words_of(command))
