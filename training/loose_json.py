"""JSON as people write it: comments, trailing and missing commas are read past; what is doubled is told by its line."""

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
    """Text that cannot be read on; the message names the line."""


@dataclass
class Document:
    """What was read: `lines` holds the line of each key by its path, `faults` what must be put right, with its line."""

    values: dict[str, Any] = field(default_factory=dict)
    lines: dict[Path, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


def read(text: str) -> Document:
    """The object that `text` holds.

    Raises:
        LooseJsonError: it holds none, or ends in its midst.
    """
    try:
        return _Reader(text).document()
    except RecursionError:
        raise LooseJsonError("the file nests too deep.") from None


class _Reader:
    def __init__(self, text: str) -> None:
        self._text, self._at, self._found = text, 0, Document()

    def document(self) -> Document:
        if self._next() != "{":
            raise LooseJsonError(f"{self._line()} begins no object: the file must start with {{.")
        self._found.values = self._object(())
        if self._next():
            raise LooseJsonError(f"{self._line()} goes on after the object has ended.")
        return self._found

    def _object(self, path: Path) -> dict[str, Any]:
        values: dict[str, Any] = {}
        self._at += 1
        while (sign := self._next()) != "}":
            key, line = self._key(sign), self._line_number()
            if self._next() != ":":
                raise LooseJsonError(f'{self._line()} needs a colon after "{key}".')
            self._at += 1
            here = (*path, key)
            if key in values:
                self._fault(f'"{key}" is given twice, first in line {self._found.lines[here]}.', line)
            self._found.lines[here] = line
            values[key] = self._value(here)
            self._comma()
        self._at += 1
        return values

    def _key(self, sign: str) -> str:
        if sign == "":
            raise LooseJsonError(f"{self._line()} is the end, and a closing }} is missing.")
        if (found := _STRING.match(self._text, self._at)) is None:
            raise LooseJsonError(f"{self._line()} needs a key in double quotes, and has {self._rest()!r}.")
        self._at = found.end()
        return str(json.loads(found.group()))

    def _value(self, path: Path) -> Any:
        sign = self._next()
        if sign == "{":
            return self._object(path)
        if (choice := _CHOICE.match(self._text, self._at)) is not None:
            options = ", ".join(part.strip() for part in choice.group()[1:-1].split("|"))
            self._fault(f'"{path[-1]}" is {choice.group()}, a choice left open: write one of {options}.')
            self._at = choice.end()
            return None
        if sign == "[":
            return self._array(path)
        found = (_STRING if sign == '"' else _PLAIN).match(self._text, self._at)
        if found is None:
            raise LooseJsonError(f'{self._line()} has no value for "{path[-1]}".')
        try:
            value = json.loads(found.group())
        except ValueError:
            value = None
            self._fault(f'"{path[-1]}" is {found.group()}, which is no JSON: text stands in double quotes.')
        self._at = found.end()
        return value

    def _array(self, path: Path) -> list[Any]:
        values: list[Any] = []
        self._at += 1
        while (sign := self._next()) != "]":
            if sign in ("", "}", ":"):
                raise LooseJsonError(f'{self._line()} leaves the list of "{path[-1]}" open: a ] is missing.')
            values.append(self._value(path))
            self._comma()
        self._at += 1
        return values

    def _comma(self) -> None:
        if self._next() == ",":
            self._at += 1

    def _next(self) -> str:
        """The next sign that is neither space nor comment; empty at the end."""
        while (skipped := _SKIPPED.match(self._text, self._at)) is not None:
            self._at = skipped.end()
        return self._text[self._at : self._at + 1]

    def _fault(self, told: str, line: int | None = None) -> None:
        self._found.faults.append(f"line {line or self._line_number()}: {told}")

    def _line_number(self) -> int:
        return self._text.count("\n", 0, self._at) + 1

    def _line(self) -> str:
        return f"line {self._line_number()}"

    def _rest(self) -> str:
        return self._text[self._at : self._at + 20].split("\n", 1)[0]
