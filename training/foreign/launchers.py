"""Commands that start a training: what launches it, on how many processes, and what is started with which arguments.

Arguments of programs and of launchers are `--name value ...`, `--name=value`, `--name` (true), `name=value`, and words by position.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from training.config import yaml_text
from training.foreign.entries import Values, as_number, tables
from training.foreign.shell_text import Command, Script
from training.foreign.shell_text import read as read_script
from training.foreign.shell_values import Unresolved

ACCELERATE = "accelerate launch"
TORCHRUN = "torchrun"
DEEPSPEED = "deepspeed"
PYTHON = "python"
_TABLES = tables("launchers")
_SWITCHES = {launcher: frozenset(names) for launcher, names in _TABLES["switches"].items()}
_SHELLS = frozenset(("bash", "sh", "zsh", "eval"))
_PYTHON_NAME = re.compile(r"(python|pypy)[\d.]*")
_MOST_NESTED = 4
_MOST_PARTS = 8
_FARTHEST = 64
"""Words before a launcher: those of `srun`, `env`, `nohup` and others with their options."""


@dataclass(frozen=True)
class Launch:
    """A program that a command starts: a script's path, a module's or a command's name; `options` are the launcher's."""

    target: str
    arguments: list[str]
    launcher: str = ""
    options: Values = field(default_factory=dict)


def launches(script: Script, programs: frozenset[str], depth: int = 0) -> list[Launch]:
    """What the commands of a script start: Python with a script or module, by itself or by a launcher, or one of `programs`."""
    started: list[Launch] = []
    for command in script.commands:
        started += _of_command(command, programs, depth)
    return started


def _of_command(command: Command, programs: frozenset[str], depth: int) -> list[Launch]:
    words = [word for word in command.words if word not in ("!", "$", "%")]
    if not words or _name(words[0].lstrip("!%$")) in _TABLES["no_training"]:
        return []
    words[0] = type(words[0])(words[0].lstrip("!%")) if type(words[0]) is str else words[0]
    for part in [*_parts_behind(words), words]:
        if (started := _in(part, command, programs, depth)) is not None:
            return started
    has_flags = any(word.startswith("--") for word in words[1:])
    return [_with_variables(Launch(words[0], words[1:]), command)] if has_flags else []


def _in(words: list[str], command: Command, programs: frozenset[str], depth: int) -> list[Launch] | None:
    """What the first launcher, script or program among the words starts; None if there is none."""
    for place, word in enumerate(words[:_FARTHEST]):
        name = _name(word)
        if name in _SHELLS and depth < _MOST_NESTED and len(words) > place + 1:
            return _of_shell(words[place:], command, programs, depth)
        if (launch := _at(name, words[place:], programs)) is not None:
            return [_with_variables(launch, command)]
    return None


def _parts_behind(words: list[str]) -> list[list[str]]:
    """The commands that another one starts: `submit --gpus 8 -- source env && accelerate launch ...`, the last one first."""
    ends = [*(place for place, word in enumerate(words) if word in ("--", "&&", ";")), len(words)]
    parts = [words[start + 1 : end] for start, end in pairwise(ends)]
    return [part for part in reversed(parts[-_MOST_PARTS:]) if part and not part[0].startswith("-")]


def _of_shell(words: list[str], command: Command, programs: frozenset[str], depth: int) -> list[Launch]:
    """What `bash -c text` and `eval text` start."""
    if words[0] == "eval":
        text = " ".join(words[1:])
    else:
        place = next((number for number, word in enumerate(words) if re.fullmatch(r"-\w*c", word)), None)
        if place is None or place + 1 >= len(words):
            return []
        text = words[place + 1]
    inner = launches(read_script(text), programs, depth + 1)
    return [_with_variables(launch, command) for launch in inner]


def _with_variables(launch: Launch, command: Command) -> Launch:
    """The launch with the variables that set its number of processes among the launcher's options."""
    return Launch(launch.target, launch.arguments, launch.launcher, {**command.variables, **launch.options})


def _at(name: str, words: Sequence[str], programs: frozenset[str]) -> Launch | None:
    """What the words start if the first of them is a launcher, Python, a script or a program."""
    rest = list(words[1:])
    if name == "accelerate" and rest[:1] == ["launch"]:
        return _started(ACCELERATE, rest[1:])
    launcher = _TABLES["commands"].get(name) or (PYTHON if _PYTHON_NAME.fullmatch(name) else "")
    if launcher:
        launch = _started(launcher, rest)
        module = _TABLES["modules"].get(launch.target) if launch else None
        return _started(module, launch.arguments) if launch and module else launch
    if name == "tune" and rest[:1] == ["run"]:  # which takes torchrun's options
        return _started(TORCHRUN, rest[1:])
    if (
        name == "oumi"
        and rest[:1] == ["distributed"]
        and _name(rest[1] if len(rest) > 1 else "") in ("torchrun", "accelerate")
    ):
        return _at(_name(rest[1]), rest[1:], programs)
    if name in programs:
        return Launch(name, rest)
    return Launch(str(words[0]), rest, PYTHON) if name.endswith(".py") else None


def _started(launcher: str, words: list[str]) -> Launch | None:
    """What a launcher starts: the first word that is no option of its own."""
    switches = _SWITCHES[launcher]
    own: list[str] = []
    place = 0
    while place < len(words) and (words[place].startswith("-") or _hides_options(words, place)):
        name, equals, _ = words[place].lstrip("-").partition("=")
        name = name.replace("-", "_")
        hidden = not words[place].startswith("-")
        module = name == "m" and launcher == PYTHON
        behind = place + (1 if equals or hidden or module or name in switches else 2)
        own += [] if hidden else words[place:behind]
        place = behind
        if module:
            break
    if place >= len(words):
        return None
    options = arguments(own, switches).flags if launcher != PYTHON else {}
    return Launch(str(words[place]), words[place + 1 :], launcher, options)


def _hides_options(words: list[str], place: int) -> bool:
    """True for a word whose value is not known and which a script follows: it may have options of the launcher."""
    behind = words[place + 1 : place + 1 + _MOST_PARTS]
    return isinstance(words[place], Unresolved) and any(word.endswith(".py") for word in behind)


def _name(word: str) -> str:
    return word.rpartition("/")[2]


_WORDS: dict[str, Any] = {"true": True, "false": False, "none": None, "null": None}
_OVERRIDE = re.compile(r"([A-Za-z_][\w.]*)=(.*)", re.DOTALL)
_FLAG = re.compile(r"--?[A-Za-z]")


@dataclass
class Arguments:
    """Flags by name, with `_` for `-`, and the words before the first flag."""

    flags: Values = field(default_factory=dict)
    positional: list[str] = field(default_factory=list)


def arguments(words: Sequence[str], switches: frozenset[str] = frozenset()) -> Arguments:
    """The arguments. `switches` are names of flags that take no value; other flags take the words up to the next flag."""
    read = Arguments()
    name = ""
    for word in words:
        text = str(word)
        if _FLAG.match(text):
            name, equals, _ = text.lstrip("-").partition("=")
            written = text[text.find("=") + 1 :]
            name = name.replace("-", "_")
            read.flags[name] = scalar(_as(word, written)) if equals else True
            name = "" if equals or name in switches else name
        elif (match := _OVERRIDE.fullmatch(text)) is not None and (not name or read.flags[name] is not True):
            read.flags[match.group(1)] = scalar(_as(word, match.group(2)))
        elif name and isinstance(word, Unresolved) and read.flags[name] is not True:
            read.positional.append(word)  # perhaps further flags: a value that is given stays
        elif name:
            read.flags[name] = _more(read.flags[name], scalar(word))
        elif text.strip():
            read.positional.append(word)
    return read


def _more(before: Any, value: Any) -> Any:
    if before is True:
        return value
    return [*before, value] if isinstance(before, list) else [before, value]


def _as(word: str, text: str) -> str:
    return Unresolved(text, word.reason) if isinstance(word, Unresolved) else text


def scalar(word: str) -> Any:
    """The number, truth value, mapping or list that a word writes, else the word."""
    text = word.strip()
    if isinstance(word, Unresolved):
        return word
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return yaml_text.load(text) if text[:1] in ("{", "[") else as_number(word)
    except yaml_text.YamlTextError:
        return word
