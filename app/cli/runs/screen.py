"""The output of `lathe run --follow`: a line updated in place on a terminal, plain lines elsewhere."""

import shutil
import time
from collections.abc import Callable
from typing import Protocol, TextIO

from app.cli.terminal import clear_line
from app.format.numbers import shorten

EVERY_SECONDS = 5.0


class Screen(Protocol):
    """Shows the progress of a run. `bar_width` is the width of a progress bar in characters, 0 for none."""

    bar_width: int

    def update(self, line: str, heading: str) -> None:
        """Shows the run's current line; `heading` names its activity."""

    def note(self, line: str) -> None:
        """Writes a permanent line."""

    def close(self) -> None:
        """Clears the current line."""


class LiveScreen:
    """A terminal: the last line is updated in place, notes scroll above it."""

    bar_width = 20

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._line = ""

    def update(self, line: str, heading: str) -> None:  # noqa: ARG002 - a terminal shows every line
        self._line = line
        self._write(self._fitted())

    def note(self, line: str) -> None:
        self._write(f"{line}\n{self._fitted()}")

    def close(self) -> None:
        self._line = ""
        self._write("")

    def _fitted(self) -> str:
        return shorten(self._line, shutil.get_terminal_size().columns - 1)

    def _write(self, text: str) -> None:
        clear_line(self._stream)
        self._stream.write(text)
        self._stream.flush()


class PlainScreen:
    """A file or a pipe: a line for each new activity, and one every few seconds."""

    bar_width = 0

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._heading = self._line = ""
        self._written = 0.0

    def update(self, line: str, heading: str) -> None:
        now = self._clock()
        due = heading != self._heading or now - self._written >= EVERY_SECONDS
        if due and line != self._line:
            self._heading, self._line, self._written = heading, line, now
            self._write(line)

    def note(self, line: str) -> None:
        self._write(line)

    def close(self) -> None:
        pass

    def _write(self, line: str) -> None:
        self._stream.write(line + "\n")
        self._stream.flush()


def screen_for(stream: TextIO) -> Screen:
    """The screen for the stream."""
    return LiveScreen(stream) if stream.isatty() else PlainScreen(stream)
