"""Where a follower writes: one line that changes in place on a terminal, plain lines everywhere else."""

import shutil
import time
from collections.abc import Callable
from typing import Protocol, TextIO

from app.text import shorten

CLEAR = "\r\x1b[2K"
EVERY_SECONDS = 5.0


class Screen(Protocol):
    """Takes what a follower has to say. `bar_width` is how many characters a progress bar may take, 0 for none."""

    bar_width: int

    def update(self, line: str, heading: str) -> None:
        """Shows where the run stands; `heading` names what it is doing."""

    def note(self, line: str) -> None:
        """Writes something that stays."""

    def close(self) -> None:
        """Ends the line that changes, so that what follows begins on a clean one."""


class LiveScreen:
    """A terminal: the last line is rewritten in place, notes scroll away above it."""

    bar_width = 20

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._line = ""

    def update(self, line: str, heading: str) -> None:  # noqa: ARG002 - a terminal shows every line
        self._line = line
        self._write(CLEAR + self._fitted())

    def note(self, line: str) -> None:
        self._write(f"{CLEAR}{line}\n{self._fitted()}")

    def close(self) -> None:
        self._line = ""
        self._write(CLEAR)

    def _fitted(self) -> str:
        return shorten(self._line, shutil.get_terminal_size().columns - 1)

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class PlainScreen:
    """A file or a pipe: a line when the run turns to something else, and one every few seconds while it goes on."""

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
    """The screen that suits the stream."""
    return LiveScreen(stream) if stream.isatty() else PlainScreen(stream)
