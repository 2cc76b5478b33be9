"""Text without characters that control a terminal or reorder what follows, and a stream that writes only such text."""

import re
import sys
from collections.abc import Callable
from typing import Any

_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")  # all but tab and line feed


def printable(text: str) -> str:
    """The text with U+FFFD in place of each control character but tab and line feed."""
    if text.isascii() and text.isprintable():
        return text
    return _CONTROLS.sub("\ufffd", text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    """The text in one line, without control characters."""
    return " ".join(_CONTROLS.sub(" ", text).split())


def markdown_text(text: str) -> str:
    """The text in one line of Markdown, such as a cell of a table: without markup and HTML."""
    return re.sub(r"([\\`*_{}\[\]<>|#~&])", r"\\\1", one_line(text))


class ChangedStream:
    """A text stream that writes `change(text)` in place of each text. `unchanged` is the stream behind it."""

    def __init__(self, stream: Any, change: Callable[[str], str]) -> None:
        self.unchanged, self._change = stream, change

    def write(self, text: str) -> int:
        self.unchanged.write(self._change(text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unchanged, name)


def change_output(change: Callable[[str], str]) -> None:
    """Changes what this process prints from now on. Call it before libraries keep the streams."""
    sys.stdout, sys.stderr = ChangedStream(sys.stdout, change), ChangedStream(sys.stderr, change)
