"""Reads JSON written by hand: accepts comments and extra or missing commas, and reports duplicate keys by line."""

import json
import re
from dataclasses import dataclass, field
from typing import Any

Path = tuple[str, ...]

_SKIPPED = re.compile(r"\s+|#[^\n]*|//[^\n]*|/\*.*?\*/", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_PLAIN = re.compile(r"[^\s,\]}\[{:\"#]+")
_CHOICE = re.compile(r"\[[^\[\]{}\"\n]*\|[^\[\]{}\"\n]*\]")


class LooseJsonError(ValueError):
    """Text that cannot be parsed; the message names the line."""


@dataclass
class Document:
    """A parsed file: `lines` has the line of each key by its path, `faults` the errors, each with its line."""

    values: dict[str, Any] = field(default_factory=dict)
    lines: dict[Path, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


def read(text: str) -> Document:
    """The object in `text`. Raises LooseJsonError if there is none, or it is incomplete."""
    try:
        return _Reader(text).document()
    except RecursionError:
        raise LooseJsonError("the file is nested too deeply.") from None


class _Reader:
    def __init__(self, text: str) -> None:
        self._text, self._at, self._document = text, 0, Document()

    def document(self) -> Document:
        if self._next() != "{":
            raise LooseJsonError(f"{self._line()}: the file must start with {{.")
        self._document.values = self._object(())
        if self._next():
            raise LooseJsonError(f"{self._line()}: there is more text after the object.")
        return self._document

    def _object(self, path: Path) -> dict[str, Any]:
        values: dict[str, Any] = {}
        self._at += 1
        while (character := self._next()) != "}":
            key, line = self._key(character), self._line_number()
            if self._next() != ":":
                raise LooseJsonError(f'{self._line()}: a colon is missing after "{key}".')
            self._at += 1
            here = (*path, key)
            if key in values:
                self._fault(f'"{key}" appears twice, first in line {self._document.lines[here]}.', line)
            self._document.lines[here] = line
            values[key] = self._value(here)
            self._comma()
        self._at += 1
        return values

    def _key(self, character: str) -> str:
        if character == "":
            raise LooseJsonError(f"{self._line()}: a closing }} is missing.")
        if (match := _STRING.match(self._text, self._at)) is None:
            raise LooseJsonError(f"{self._line()}: expected a key in double quotes, found {self._rest()!r}.")
        self._at = match.end()
        return str(json.loads(match.group()))

    def _value(self, path: Path) -> Any:
        character = self._next()
        if character == "{":
            return self._object(path)
        if (choice := _CHOICE.match(self._text, self._at)) is not None:
            options = ", ".join(part.strip() for part in choice.group()[1:-1].split("|"))
            self._fault(f'"{path[-1]}" is the placeholder {choice.group()}: write one of {options}.')
            self._at = choice.end()
            return None
        if character == "[":
            return self._array(path)
        match = (_STRING if character == '"' else _PLAIN).match(self._text, self._at)
        if match is None:
            raise LooseJsonError(f'{self._line()}: "{path[-1]}" has no value.')
        try:
            value = json.loads(match.group())
        except ValueError:
            value = None
            self._fault(f'"{path[-1]}" is {match.group()}, which is not valid JSON: write text in double quotes.')
        self._at = match.end()
        return value

    def _array(self, path: Path) -> list[Any]:
        values: list[Any] = []
        self._at += 1
        while (character := self._next()) != "]":
            if character in ("", "}", ":"):
                raise LooseJsonError(f'{self._line()}: a closing ] is missing in the list of "{path[-1]}".')
            values.append(self._value(path))
            self._comma()
        self._at += 1
        return values

    def _comma(self) -> None:
        if self._next() == ",":
            self._at += 1

    def _next(self) -> str:
        """The next character outside white space and comments; empty at the end."""
        while (skipped := _SKIPPED.match(self._text, self._at)) is not None:
            self._at = skipped.end()
        return self._text[self._at : self._at + 1]

    def _fault(self, message: str, line: int | None = None) -> None:
        self._document.faults.append(f"line {line or self._line_number()}: {message}")

    def _line_number(self) -> int:
        return self._text.count("\n", 0, self._at) + 1

    def _line(self) -> str:
        return f"line {self._line_number()}"

    def _rest(self) -> str:
        return self._text[self._at : self._at + 20].split("\n", 1)[0]
