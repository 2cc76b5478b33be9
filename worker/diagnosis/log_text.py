"""Parses a log: lines with their ranks, tracebacks with their frames, and what the launcher reports about the ranks.

Logs may contain colors, progress bars and the mixed output of several ranks.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from worker.diagnosis.log_file import Excerpt
from worker.redaction import ESCAPES

LONGEST_LINE = 4000  # characters
_HEADER = "Traceback (most recent call last)"
# What launchers put before each line: torch's own hook, torchrun --tee, Lightning, mpirun.
_PREFIX = re.compile(r"\s*(?:\[(rank|default)(\d{1,5})\]:|\[rank: ?(\d{1,5})\]|\[\d+,(\d{1,5})\]<std(?:err|out)>:) ?")
_SRUN = re.compile(r"\s{0,4}(\d{1,4}): ")
_NAMED = re.compile(r"\[(?:PG [^\]]*)?[Rr]ank[: ]?(\d{1,5})\]")
_BAR = re.compile(r"\d+%\|")
_FRAME = re.compile(r'\s+File "([^"]*)", line \d+, in (.*)|│ (\S+):\d+ in\s*(\w*)')
_RICH_CODE = re.compile(r"│? *❱ *\d+ [│ ]*(.*?) *│?$")  # rich draws a box around the frames
_INDENTED = re.compile(r"(\s*)(?:traceback : )?Traceback")  # torchrun's summary repeats a rank's
_INSIDE = (" ", "\t", "│", "╭", "╰")
_TIME = re.compile(r"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S* (?:std(?:out|err) [FP] )?")
_LAUNCHERS = re.compile(r"torch/distributed/(run|launcher|elastic)|accelerate/commands/launch|deepspeed/launcher")
_WRAPPERS = ("ChildFailedError", "CalledProcessError", "SignalException")
_ROOT_CAUSE = re.compile(r"Root Cause \(first observed failure\):.*?^\s*rank\s*: (\d{1,5})", re.S | re.M)
_FIRST_EXIT = re.compile(r"failed \(exitcode: -?\d+\) local_rank: (\d{1,5})")
_WORLD = re.compile(r"(?:world[_ ]size|nproc[_-]per[_-]node|num_processes)[\s=:'\"]+(\d{1,5})\b", re.I)
_LISTED = re.compile(r"^\s*rank\s*: (\d{1,5}) \(local_rank", re.M)
_LOSS = re.compile(r"['\"]loss['\"]: '?[\d.naif]+")


@dataclass(frozen=True)
class Line:
    """A line of a log: `number` from 1, `rank` if it is marked, `text` without the mark, `shown` with it."""

    number: int
    rank: int | None
    text: str
    shown: str


@dataclass(frozen=True)
class Frame:
    """A frame of a traceback."""

    file: str
    function: str
    code: str


@dataclass(frozen=True)
class Traceback:
    """A traceback: the indices of its first and last line in `Log.lines`, and its frames, the innermost last."""

    first: int
    last: int
    frames: tuple[Frame, ...]


class Log:
    """A parsed log. `text` is its lines without the marks of ranks."""

    def __init__(self, source: Sequence[Excerpt]) -> None:
        self.lines = _lines(source)
        self.text = "\n".join(line.text for line in self.lines)
        self._starts = [0]
        for line in self.lines:
            self._starts.append(self._starts[-1] + len(line.text) + 1)

    def place(self, offset: int) -> int:
        """The index in `lines` of a character of `text`."""
        return min(bisect_right(self._starts, offset) - 1, len(self.lines) - 1)

    def following(self, place: int, count: int) -> str:
        """The line at an index joined with the next lines of the same rank, `count` in all."""
        own = [line for line in self.lines[place : place + 4 * count] if line.rank == self.lines[place].rank]
        return " ".join(line.text for line in own[:count])

    def training_continued_after(self, place: int) -> bool:
        """True if at least three losses were logged after the line."""
        return len(self._losses) - bisect_right(self._losses, place) >= 3

    def traceback_at(self, place: int) -> Traceback | None:
        """The traceback that contains the line, or that the same rank printed just before it."""
        near = [one for one in self.tracebacks if one.first <= place <= one.last + 3 and self._same_rank(one, place)]
        return near[-1] if near else None

    def _same_rank(self, one: Traceback, place: int) -> bool:
        return self.lines[one.first].rank == self.lines[place].rank

    @cached_property
    def tracebacks(self) -> list[Traceback]:
        """The tracebacks of the ranks in order, without the launcher's own, which only report that a rank failed."""
        by_rank: dict[int | None, list[int]] = {}
        for place, line in enumerate(self.lines):
            by_rank.setdefault(line.rank, []).append(place)
        found = [one for places in by_rank.values() for one in _tracebacks(self.lines, places)]
        return sorted((one for one in found if not self.of_launcher(one)), key=lambda one: one.first)

    def of_launcher(self, one: Traceback) -> bool:
        """True if the launcher raised it, which only means that a rank failed."""
        raised_in = one.frames[-1].file if one.frames else ""
        return any(word in self.lines[one.last].text for word in _WRAPPERS) or bool(_LAUNCHERS.search(raised_in))

    @cached_property
    def root_rank(self) -> int | None:
        """The rank that failed first, according to the launcher."""
        found = _ROOT_CAUSE.search(self.text) or _FIRST_EXIT.search(self.text)
        return int(found[1]) if found else None

    @cached_property
    def ranks(self) -> int:
        """The number of ranks, from the world size, the marked lines or the launcher's summary; 0 if unknown."""
        said = [int(size) for size in _WORLD.findall(self.text)]
        seen = [line.rank for line in self.lines if line.rank is not None]
        listed = [int(rank) for rank in _LISTED.findall(self.text)]
        return max([*said, *(rank + 1 for rank in (*seen, *listed))], default=0)

    @cached_property
    def _losses(self) -> list[int]:
        return [self.place(found.start()) for found in _LOSS.finditer(self.text)]


def _lines(source: Sequence[Excerpt]) -> list[Line]:
    shown = [line for part in source for line in _printed(part)]
    timed, numbered = _mostly(_TIME, shown), _mostly(_SRUN, shown)
    return [_line(number, text, timed=timed, srun=numbered) for number, text in shown]


def _mostly(pattern: re.Pattern[str], lines: list[tuple[int, str]]) -> bool:
    """True if nearly every line begins with the pattern."""
    return len(lines) > 1 and sum(bool(pattern.match(text)) for _, text in lines) > 0.8 * len(lines)


def _printed(source: Excerpt) -> Iterator[tuple[int, str]]:
    """Each line's number and text; of a progress bar only the last state, and messages printed over it."""
    for number, raw in enumerate(source.text.split("\n"), source.first_line):
        parts = [part for part in raw.split("\r") if part.strip()]
        for part in [*(one for one in parts[:-1] if not _BAR.search(one)), *parts[-1:]]:
            yield number, ESCAPES.sub("", part[: 2 * LONGEST_LINE]).replace("\0", "")[:LONGEST_LINE].rstrip()


def _line(number: int, shown: str, *, timed: bool, srun: bool) -> Line:
    rank, text = None, _TIME.sub("", shown, count=1) if timed else shown
    if srun and (label := _SRUN.match(text)):
        rank, text = int(label[1]), text[label.end() :]
    while mark := _PREFIX.match(text):
        kind, *numbers = mark.groups()
        # torchrun --tee gives the local rank; torch's own mark, further in, gives the global rank.
        rank = int(next(number for number in numbers if number)) if rank is None or kind == "rank" else rank
        text = text[mark.end() :]
    if rank is None and (named := _NAMED.search(text)):
        rank = int(named[1])
    return Line(number, rank, text, shown)


def _tracebacks(lines: list[Line], places: list[int]) -> Iterator[Traceback]:
    """The tracebacks among the lines of one rank."""
    first, frames, indent = -1, list[Frame](), ""
    for place in places:
        text = lines[place].text.removeprefix(indent)
        if _HEADER in text:  # a progress bar may stand before it
            first, frames = place, []
            indented = _INDENTED.match(lines[place].text)
            indent = indented[1] if indented else ""
        elif first >= 0 and text.startswith(_INSIDE):
            _add(text, frames)
        elif first >= 0 and text:
            yield Traceback(first, place, tuple(frames))
            first = -1


def _add(text: str, frames: list[Frame]) -> None:
    """Adds a line of a traceback: a new frame, or the code of the last one."""
    if frame := _FRAME.match(text):
        frames.append(Frame(frame[1] or frame[3], frame[2] or frame[4] or "", ""))
        return
    rich = _RICH_CODE.match(text)
    code = rich[1] if rich else "" if text.startswith("│") else text.strip()
    if code and frames and not frames[-1].code:
        frames[-1] = Frame(frames[-1].file, frames[-1].function, code)
