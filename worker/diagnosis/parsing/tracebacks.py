"""Finds tracebacks among the lines of one rank: Python's, rich's, notebooks', and those with their first or last lines cut off."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from worker.diagnosis.parsing.frames import Frame
from worker.diagnosis.parsing.notebooks import notebook_traceback

HEADER = "Traceback (most recent call last)"
_FRAME = re.compile(r'\s*File "([^"]*)", line \d+(?:, in (.*)|$)|│ (\S+):\d+ in\s*(\w*)')
_RICH_CODE = re.compile(r"│? *❱ *\d+ [│ ]*(.*?) *│?$")  # rich draws a box around the frames
_INDENTED = re.compile(r"(\s*)(?:traceback : )?Traceback")  # torchrun's summary repeats a rank's
_INSIDE = (" ", "\t", "│", "╭", "╰")
_EXCEPTION = re.compile(r"[A-Za-z_][\w.<>]*(?::(?: |$)|$)")
_PASTED = re.compile(r"(?:\w+\.)*\w*(?:Error|Exception|Interrupt)(?:: |$)")
_MOST_MESSAGE = 14  # lines
_AFTER_MESSAGE = re.compile(
    r"\s*$|.*Traceback \(most|During handling of|The above exception|\d+%\||\[?\d{4}-\d\d-\d\d|[EWIF]\d{4} |={10}|\*{5}|\["
    r"|(?:wandb|ERROR|INFO|WARNING)\b[: ]|\$ |\S+@\S+[:$#]"
)


@dataclass(frozen=True)
class Traceback:
    """A traceback: the indices of its first line, of the line with the exception, and of the exception message's last line.

    `frames` have the innermost last.
    """

    first: int
    last: int
    end: int
    frames: tuple[Frame, ...]


def tracebacks(texts: Sequence[str], places: Sequence[int]) -> Iterator[Traceback]:
    """The tracebacks among the lines of one rank; `places` are the indices of these lines in `texts`."""
    first, frames, indent, depth, after = -1, list[Frame](), "", 0, 0
    for index, place in enumerate(places):
        text = texts[place].removeprefix(indent)
        if index < after:
            continue
        if HEADER in text and (found := notebook_traceback(texts, places, index)):
            last, first, after = found[0], -1, found[0] + 1
            yield Traceback(place, places[last], _end(texts, places, last, ""), found[1])
        elif HEADER in text:  # a progress bar may stand before it
            first, frames, depth = place, [], 0
            indented = _INDENTED.match(texts[place])
            indent = indented[1] if indented else ""
        elif _FRAME.match(text):
            if first < 0:  # the header is cut off
                first, frames, indent = place, [], ""
            depth = _depth(text)
            _add(text, frames)
        elif first >= 0 and _is_inside(text, depth):
            _add(text, frames)
        elif first >= 0 and text and not _is_wrapped_code(texts, places, index):
            yield Traceback(first, place, _end(texts, places, index, indent), tuple(frames))
            first = -1


def _depth(text: str) -> int:
    return len(text) - len(text.lstrip())


def _is_inside(text: str, depth: int) -> bool:
    """True for code below a frame that is indented by `depth`. A text pasted with an indent ends in an exception of that depth."""
    return text.startswith(_INSIDE) and not (0 < _depth(text) <= depth and _PASTED.match(text.strip()))


def wrapped_messages(texts: Sequence[str], places: Sequence[int]) -> Iterator[tuple[int, list[str]]]:
    """Exceptions whose message takes several lines of one rank: the index of the first line, and the lines."""
    for index, place in enumerate(places):
        if _EXCEPTION.match(texts[place].strip()):
            end = _end(texts, places, index, "")
            lines = [texts[one].strip() for one in places[index : index + _MOST_MESSAGE] if one <= end]
            if len(lines) > 1:
                yield place, lines


def _is_wrapped_code(texts: Sequence[str], places: Sequence[int], index: int) -> bool:
    """True if a console broke a line of the traceback in two, of which this is the second part."""
    if _EXCEPTION.match(texts[places[index]]):
        return False
    return any(_FRAME.match(texts[place]) for place in places[index + 1 : index + 3])


def _end(texts: Sequence[str], places: Sequence[int], index: int, indent: str) -> int:
    """The last line of the message that begins at `places[index]`."""
    end = places[index]
    if texts[end].removeprefix(indent).startswith("KeyboardInterrupt"):  # has no message
        return end
    for place in places[index + 1 : index + _MOST_MESSAGE]:
        if _AFTER_MESSAGE.match(texts[place].removeprefix(indent)):
            break
        end = place
    return end


def _add(text: str, frames: list[Frame]) -> None:
    """Adds a line of a traceback: a new frame, or the code of the last one."""
    if frame := _FRAME.match(text):
        frames.append(Frame(frame[1] or frame[3], frame[2] or frame[4] or "", ""))
        return
    rich = _RICH_CODE.match(text)
    code = rich[1] if rich else "" if text.startswith("│") else text.strip()
    if code and frames and not frames[-1].code:
        frames[-1] = Frame(frames[-1].file, frames[-1].function, code)
