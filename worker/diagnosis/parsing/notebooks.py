"""Finds the tracebacks of notebooks: IPython indents no frames, numbers the lines of code and puts empty lines between."""

import re
from collections.abc import Sequence

from worker.diagnosis.parsing.frames import Frame

_HEADER = re.compile(r"(?:[\w.]+\.)?(?P<type>[A-Za-z_]\w*) {2,}Traceback \(most recent call last\)")
_FRAME = re.compile(
    r"(?:File (?P<path>.+?)(?::\d+)?(?:, in (?P<function>.+))?"
    r"|(?P<cell>(?:Cell |Input )?In ?\[\d+\]|<ipython-input-[^>]*>|\S.*\.ipynb Cell \d+'?)(?:,? line \d+)?(?:,? in (?P<named>.+))?"
    r"|(?P<old>(?:[A-Za-z]:|[~/.<])\S.*?) in (?P<caller>[\w.<>]+.*))$"
)
_ARROW = re.compile(r"-+> *(?:<a [^>]*>)?\d+(?:</a>)? *(.*)")
_MOST_LINES = 3000  # of one traceback


def notebook_traceback(texts: Sequence[str], places: Sequence[int], start: int) -> tuple[int, tuple[Frame, ...]] | None:
    """The index in `places` of the line with the exception, and the frames; None if no such traceback begins at `start`."""
    header = _HEADER.match(texts[places[start]])
    if header is None:
        return None
    exception = re.compile(rf"(?:[\w.]+\.)?{header['type']}(?::|$)")
    frames: list[Frame] = []
    for index in range(start + 1, min(start + _MOST_LINES, len(places))):
        text = texts[places[index]]
        if exception.match(text):
            return index, tuple(frames)
        if _HEADER.match(text):
            return None
        _add(text, frames)
    return None


def _add(text: str, frames: list[Frame]) -> None:
    """Adds a line of the traceback: a new frame, or the line of code that the last one ran."""
    if (code := _ARROW.match(text)) and frames:
        frames[-1] = Frame(frames[-1].file, frames[-1].function, code[1])
    elif found := _FRAME.match(text):
        file = (found["path"] or found["cell"] or found["old"]).replace("\\", "/")
        function = found["function"] or found["named"] or found["caller"] or ""
        frames.append(Frame(file, function.partition("(")[0], ""))
