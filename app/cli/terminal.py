"""What `lathe` writes to a terminal: texts of people, models and logs without control characters, and its own escape sequences."""

from typing import TextIO

from training.printable import ChangedStream

CLEAR = "\r\x1b[2K"


def unchanged(stream: TextIO) -> TextIO:
    """The stream for text that contains Lathe's own escape sequences; the caller makes the rest of it printable."""
    behind: TextIO = stream.unchanged if isinstance(stream, ChangedStream) else stream
    return behind


def clear_line(stream: TextIO) -> None:
    """Clears the terminal's current line."""
    unchanged(stream).write(CLEAR)
