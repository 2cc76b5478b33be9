"""Finds tracebacks among the lines of one rank: Python's, rich's, notebooks', and those with their first or last lines cut off.

Tracebacks that belong together are joined to chains: an exception, and those that were raised because of it or while handling it.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

HEADER = "Traceback (most recent call last)"
_FRAME = re.compile(
    r'\s*File "(?P<file>[^"]*)", line (?P<line>\d+)(?:, in (?P<function>.*)|$)'
    r"|│ (?P<boxed>\S+):(?P<row>\d+) in\s*(?P<name>\w*)"  # of rich
    r"|(?P<tested>[^\s:]+\.py):(?P<at>\d+): in (?P<test>\S+)$"  # of pytest
)
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
# IPython indents no frames, numbers the lines of code and puts empty lines between.
_NOTEBOOK_HEADER = re.compile(
    r"(?:[\w.]+\.)?(?P<type>[A-Za-z_]\w*(?:\(\w+\))?) {2,}Traceback \(most recent call last\)"
)
_NOTEBOOK_FRAME = re.compile(
    r"(?:File (?P<path>.+?)(?::\d+)?(?:, in (?P<function>.+))?"
    r"|(?P<cell>(?:Cell |Input )?In ?\[\d+\]|<ipython-input-[^>]*>|\S.*\.ipynb Cell \d+'?)(?:,? line \d+)?(?:,? in (?P<named>.+))?"
    r"|(?P<old>(?:[A-Za-z]:|[~/.<])\S.*?) in (?P<caller>[\w.<>]+.*))$"
)
_NOTEBOOK_CODE = re.compile(r"-+> *(?:<a [^>]*>)?(\d+)(?:</a>)? *(.*)")
_CUT_NOTEBOOK = re.compile(r"(?:Cell In ?\[\d+\], line \d+|File \S+:\d+, in \w|/\S+\.py in [\w.<>]+\()")
_MOST_CUT_LINES = 200  # of one traceback without a header
_MOST_NOTEBOOK_LINES = 3000  # of one traceback
_INSTALLED = re.compile(r"(?:site|dist)-packages/|/lib/python\d")
_PACKAGE = re.compile(r"(?:site|dist)-packages/(\w+)")
_PASSING = re.compile(
    r"(?:^|[.>])(?:__get(?:attr|attribute|item)__|_find_and_load\w*|_call_with_frames_removed|wrapp\w*|_?inner\w*|decorate\w*"
    r"|_?wrapped_\w*|_call_impl)$"
)
"""Functions that only pass on a call, or look up a name."""
_GENERATED = re.compile(r"<(?:string|frozen [\w.]+|template)>$")
"""Code that other code made: it belongs to whoever ran it."""
_HANDLED = re.compile(r"During handling of the above exception, another exception occurred")
_LINK = re.compile(rf"The above exception was the direct cause of|{_HANDLED.pattern}|^\s*Original Traceback ")
_CHILD = re.compile(r"Process \S+:$")
_IGNORED = re.compile(r"Exception ignored in|-{3} Logging error -{3}")
_BESIDE = re.compile(rf"{_IGNORED.pattern}|Exception in|Error in (?:atexit|sys\.)|Exception caught in")


@dataclass(frozen=True)
class Frame:
    """A frame of a traceback: the file, the function, the line of code and its number, which is 0 if it is not shown."""

    file: str
    function: str
    code: str
    line: int = 0

    @property
    def package(self) -> str | None:
        """The installed package that its code is of; None for other code."""
        found = _PACKAGE.search(self.file.replace("\\", "/"))
        return found[1] if found else None

    @property
    def installed(self) -> bool:
        """True if its code is of an installed package or of Python itself, not of the user."""
        return bool(_INSTALLED.search(self.file.replace("\\", "/")))

    @property
    def of_python(self) -> bool:
        """True if its code is of Python's own library."""
        return self.installed and self.package is None


def is_passing(frame: Frame) -> bool:
    """True for a frame that only passes on a call, or whose code other code made."""
    return bool(_PASSING.search(frame.function) or _GENERATED.match(frame.file))


def raised_by_package(frames: tuple[Frame, ...]) -> bool:
    """True if the code that raised the exception is an installed package's."""
    own = [frame for frame in frames if not is_passing(frame)]
    return bool(own) and own[-1].installed


@dataclass(frozen=True)
class Traceback:
    """A traceback: the indices of its first line, of the line with the exception, and of the exception message's last line.

    `frames` have the innermost last.
    """

    first: int
    last: int
    end: int
    frames: tuple[Frame, ...]


def tracebacks(texts: Sequence[str], indices: Sequence[int]) -> Iterator[Traceback]:
    """The tracebacks among the lines of one rank; `indices` are those of these lines in `texts`."""
    first, frames, indent, depth, after = -1, list[Frame](), "", 0, 0
    for position, index in enumerate(indices):
        text = texts[index].removeprefix(indent)
        if position < after:
            continue
        if HEADER in text and (found := _notebook_traceback(texts, indices, position)):
            last, first, after = found[0], -1, found[0] + 1
            yield Traceback(index, indices[last], _end(texts, indices, last, ""), found[1])
        elif HEADER in text:  # a progress bar may stand before it
            first, frames, depth = index, [], 0
            indented = _INDENTED.match(texts[index])
            indent = indented[1] if indented else ""
        elif first < 0 and _CUT_NOTEBOOK.match(text) and (found := _cut_notebook_traceback(texts, indices, position)):
            last, after = found[0], found[0] + 1
            yield Traceback(index, indices[last], _end(texts, indices, last, ""), found[1])
        elif _FRAME.match(text):
            if first < 0:  # the header is cut off
                first, frames, indent = index, [], ""
            depth = _depth(text)
            _add(text, frames)
        elif first >= 0 and _is_inside(text, depth):
            _add(text, frames)
        elif first >= 0 and text and not _is_wrapped_code(texts, indices, position):
            yield Traceback(first, index, _end(texts, indices, position, indent), tuple(frames))
            first = -1


def _depth(text: str) -> int:
    return len(text) - len(text.lstrip())


def _is_inside(text: str, depth: int) -> bool:
    """True for code below a frame that is indented by `depth`. A text pasted with an indent ends in an exception of that depth."""
    return text.startswith(_INSIDE) and not (0 < _depth(text) <= depth and _PASTED.match(text.strip()))


def wrapped_messages(texts: Sequence[str], indices: Sequence[int]) -> Iterator[tuple[int, list[str]]]:
    """Exceptions whose message takes several lines of one rank: the index of the first line, and the lines."""
    for position, index in enumerate(indices):
        if _EXCEPTION.match(texts[index].strip()):
            end = _end(texts, indices, position, "")
            lines = [texts[one].strip() for one in indices[position : position + _MOST_MESSAGE] if one <= end]
            if len(lines) > 1:
                yield index, lines


def _is_wrapped_code(texts: Sequence[str], indices: Sequence[int], position: int) -> bool:
    """True if a console broke a line of the traceback in two, of which this is the second part."""
    if _EXCEPTION.match(texts[indices[position]]):
        return False
    return any(_FRAME.match(texts[index]) for index in indices[position + 1 : position + 3])


def _end(texts: Sequence[str], indices: Sequence[int], position: int, indent: str) -> int:
    """The last line of the message that begins at `indices[position]`."""
    end = indices[position]
    if texts[end].removeprefix(indent).startswith("KeyboardInterrupt"):  # has no message
        return end
    for index in indices[position + 1 : position + _MOST_MESSAGE]:
        if _AFTER_MESSAGE.match(texts[index].removeprefix(indent)):
            break
        end = index
    return end


def _add(text: str, frames: list[Frame]) -> None:
    """Adds a line of a traceback: a new frame, or the code of the last one."""
    if frame := _FRAME.match(text):
        file, function = (
            frame["file"] or frame["boxed"] or frame["tested"],
            frame["function"] or frame["name"] or frame["test"],
        )
        frames.append(Frame(file, function or "", "", int(frame["line"] or frame["row"] or frame["at"])))
        return
    rich = _RICH_CODE.match(text)
    code = rich[1] if rich else "" if text.startswith("│") else text.strip()
    if code and frames and not frames[-1].code:
        frames[-1] = replace(frames[-1], code=code)


def _notebook_traceback(
    texts: Sequence[str], indices: Sequence[int], start: int
) -> tuple[int, tuple[Frame, ...]] | None:
    """The position in `indices` of the line with the exception, and the frames; None if no such traceback begins at `start`."""
    header = _NOTEBOOK_HEADER.match(texts[indices[start]])
    if header is None:
        return None
    exception = re.compile(rf"(?:[\w.]+\.)?{re.escape(header['type'])}(?::|$)")
    frames: list[Frame] = []
    for position in range(start + 1, min(start + _MOST_NOTEBOOK_LINES, len(indices))):
        text = texts[indices[position]]
        if exception.match(text):
            return position, tuple(frames)
        if _NOTEBOOK_HEADER.match(text):
            return None
        _add_of_notebook(text, frames)
    return None


def _cut_notebook_traceback(
    texts: Sequence[str], indices: Sequence[int], start: int
) -> tuple[int, tuple[Frame, ...]] | None:
    """The same for a traceback whose header is cut off."""
    frames: list[Frame] = []
    for position in range(start, min(start + _MOST_CUT_LINES, len(indices))):
        text = texts[indices[position]]
        if _PASTED.match(text):
            return (position, tuple(frames)) if any(frame.code for frame in frames) else None
        _add_of_notebook(text, frames)
    return None


def _add_of_notebook(text: str, frames: list[Frame]) -> None:
    """Adds a line of the traceback: a new frame, or the line of code that the last one ran."""
    if (code := _NOTEBOOK_CODE.match(text)) and frames:
        frames[-1] = replace(frames[-1], code=code[2], line=int(code[1]))
    elif found := _NOTEBOOK_FRAME.match(text):
        file = (found["path"] or found["cell"] or found["old"]).replace("\\", "/")
        function = found["function"] or found["named"] or found["caller"] or ""
        frames.append(Frame(file, function.partition("(")[0], ""))


@dataclass(frozen=True)
class Chain:
    """The tracebacks of one exception and its causes, in the log's order: the last is what ended the run.

    `beside` is true if Python reported it without ending the program: in another thread, in a destructor, at exit. `child` is true
    if it ended a child process.
    """

    links: tuple[Traceback, ...]
    handled: bool = False
    """True if the last exception was raised while another one was handled, without naming it as its cause."""
    beside: bool = False
    child: bool = False
    ignored: bool = False
    """True if Python ignored it, in a destructor or in logging."""

    def raised_at(self, index: int) -> bool:
        """True if the line is in the message of one of the exceptions."""
        return any(link.last <= index <= link.end for link in self.links)

    def contains(self, index: int) -> bool:
        """True if the line is in one of the tracebacks or between two of them."""
        return self.links[0].first <= index <= self.links[-1].end


def chains(texts: Sequence[str], indices: Sequence[int], traces: Sequence[Traceback]) -> list[Chain]:
    """The chains of the tracebacks of one rank; `indices` are those of its lines in `texts`."""
    joined: list[Chain] = []
    for trace in traces:
        previous = joined[-1] if joined else None
        start = previous.links[-1].last if previous else -1
        between = [texts[index] for index in indices[bisect_right(indices, start) : bisect_right(indices, trace.first)]]
        if previous and any(_LINK.search(text) for text in between):
            handled = any(_HANDLED.search(text) for text in between)
            joined[-1] = Chain((*previous.links, trace), handled, previous.beside, previous.child)
        else:
            above = _above(between)
            beside, child, ignored = (any(map(mark.match, above)) for mark in (_BESIDE, _CHILD, _IGNORED))
            joined.append(Chain((trace,), beside=beside, child=child, ignored=ignored))
    return joined


def _above(between: Sequence[str]) -> Sequence[str]:
    """The last lines above a traceback; a notebook begins its own with a line of dashes."""
    last = between[-3:]
    ruled = [position for position, text in enumerate(last) if text.startswith("-----")]
    return last[ruled[-1] :] if ruled else last
