"""Reads the arguments of a program: `--name value ...`, `--name=value`, `--name` (true), `name=value`, and others by position."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from training.config import yaml_text
from training.foreign.entries import Values
from training.foreign.shell_values import Unresolved

_INTEGER = re.compile(r"[+-]?\d{1,18}")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4})?")
_WORDS: dict[str, Any] = {"true": True, "false": False, "none": None, "null": None}
_OVERRIDE = re.compile(r"([A-Za-z_][\w.]*)=(.*)", re.DOTALL)
_FLAG = re.compile(r"--?[A-Za-z]")


@dataclass
class Arguments:
    """Flags by name, with `_` for `-`, and the words before the first flag."""

    flags: Values = field(default_factory=dict)
    positional: list[str] = field(default_factory=list)


def read(words: Sequence[str], switches: frozenset[str] = frozenset()) -> Arguments:
    """The arguments. `switches` are names of flags that take no value; other flags take the words up to the next flag."""
    arguments = Arguments()
    name = ""
    for word in words:
        text = str(word)
        if _FLAG.match(text):
            name, equals, _ = text.lstrip("-").partition("=")
            written = text[text.find("=") + 1 :]
            name = name.replace("-", "_")
            arguments.flags[name] = scalar(_as(word, written)) if equals else True
            name = "" if equals or name in switches else name
        elif (match := _OVERRIDE.fullmatch(text)) is not None and (not name or arguments.flags[name] is not True):
            arguments.flags[match.group(1)] = scalar(_as(word, match.group(2)))
        elif name and isinstance(word, Unresolved) and arguments.flags[name] is not True:
            arguments.positional.append(word)  # perhaps further flags: a value that is given stays
        elif name:
            arguments.flags[name] = _more(arguments.flags[name], scalar(word))
        elif text.strip():
            arguments.positional.append(word)
    return arguments


def _more(before: Any, value: Any) -> Any:
    if before is True:
        return value
    return [*before, value] if isinstance(before, list) else [before, value]


def _as(word: str, text: str) -> str:
    """A part of a word, unresolved as the word is."""
    return Unresolved(text, word.reason) if isinstance(word, Unresolved) else text


def scalar(word: str) -> Any:
    """The number, truth value, mapping or list that a word writes, else the word."""
    text = word.strip()
    if isinstance(word, Unresolved):
        return word
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _NUMBER.fullmatch(text):
        return int(text) if _INTEGER.fullmatch(text) else float(text)
    try:
        return yaml_text.load(text) if text[:1] in ("{", "[") else word
    except yaml_text.YamlTextError:
        return word
