"""Parses a log into lines with their ranks and roles, and tracebacks.

Logs may contain colors, progress bars, prefixes of launchers, log collectors and loggers, lines broken by a terminal, and the mixed
output of several ranks.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise

from training.redaction import ESCAPES
from worker.diagnosis.log_file import Excerpt
from worker.diagnosis.parsing import prefixes
from worker.diagnosis.parsing.lines import (
    NOTICE_LEVELS,
    Line,
    Role,
    Source,
    is_exception,
    is_survived,
    last_printed,
    roles,
)
from worker.diagnosis.parsing.needles import Haystack
from worker.diagnosis.parsing.tracebacks import Traceback, tracebacks, wrapped_messages

LONGEST_LINE = 4000  # characters
_REPEATS = 50
_WRAPPED = 200
_DIGITS = re.compile(r"\d+")
_BAR = re.compile(r"\d%\|")
_LAUNCHERS = re.compile(r"torch/distributed/(run|launcher|elastic)|accelerate/commands/launch|deepspeed/launcher")
_FENCES = ("```", "~~~")
_WRAPPERS = ("ChildFailedError", "CalledProcessError", "SignalException")
_WORLD = re.compile(r"(?:world[_ ]size|nproc[_-]per[_-]node|num_processes)[\s=:'\"]+(\d{1,5})\b", re.I)
_LISTED = re.compile(r"^\s*rank\s*: (\d{1,5}) \(local_rank", re.M)
_REPR = re.compile(r"""\b(\w{1,60}(?:Error|Exception))\((["'])""")
_FAILED = re.compile(r"(?i)\b(?:fail(?:ed|ure)?|crash(?:ed)?|died|fatal|abort(?:ed|ing)?|raised|exception|error)\b")
_TWICE = re.compile(r"^((?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception))\1: : (.*)$")
"""An exception that two processes printed at once: Python writes its type, the colon and its message one after the other."""
_LINKED = re.compile(r"^\[(<?[/~\w][^\]\s]*)\]\(https?://[^)\s]*\)(?= in )")
"""The file of a frame as a link, as Colab copies it."""
_IGNORED = re.compile(r"Exception ignored (?:in|while)\b")
_ZERO = re.compile(r"-?0\.0+")
_VALUE = re.compile(r"\b(\w*[Ll]oss|grad[_ ]norm)['\"]?\s*[:= ]\s*['\"]?(?:tensor\()?((?i:nan|inf)|-?[\d.]+)")


class LogText:
    """The lines of a log. `text` is its lines without the marks of ranks; of lines that repeat very often, most are empty there."""

    def __init__(self, source: Sequence[Excerpt]) -> None:
        self.lines = _lines(source)
        searched = _without_repeats([line.text for line in self.lines])
        self.text = "\n".join(searched)
        self.searched = searched
        self._starts = [0]
        for text in searched:
            self._starts.append(self._starts[-1] + len(text) + 1)

    def index_of(self, offset: int) -> int:
        """The index in `lines` of a character of `text`."""
        return min(bisect_right(self._starts, offset) - 1, len(self.lines) - 1)

    def following(self, index: int, count: int) -> str:
        """The line at an index joined with the next lines of the same rank, `count` in all."""
        own = [line for line in self.lines[index : index + 4 * count] if line.source == self.lines[index].source]
        return " ".join(line.text for line in own[:count])

    @cached_property
    def ends_not_finite(self) -> bool:
        """True if the last two losses or gradient norms are NaN or infinite, or the last is the first that is."""
        values: dict[str, list[bool]] = {}
        for name, value in _VALUE.findall(self.text):
            values.setdefault(name, []).append(value.lower() not in ("nan", "inf"))
        return any(not any(finite[-2:]) or all(finite[:-1]) > finite[-1] for finite in values.values())

    @cached_property
    def ends_at_zero(self) -> bool:
        """True if the last two losses, or the only one, are exactly 0."""
        losses = [value for name, value in _VALUE.findall(self.text) if name == "loss"][-2:]
        return bool(losses) and all(_ZERO.fullmatch(value) for value in losses)

    def traceback_at(self, index: int) -> Traceback | None:
        """The traceback that contains the line, or that the same rank printed just before it."""
        near = [
            trace
            for trace in self.tracebacks
            if trace.first <= index <= max(trace.end, trace.last + 3) and self._same_source(trace, index)
        ]
        return near[-1] if near else None

    def raised_inside(self, index: int, code: re.Pattern[str]) -> bool:
        """True if the line is of an exception with a frame in a file or function that matches."""
        trace = self.traceback_at(index)
        return trace is not None and any(
            code.search(f"{frame.file} {frame.function} {frame.code}") for frame in trace.frames
        )

    def _same_source(self, trace: Traceback, index: int) -> bool:
        return self.lines[trace.first].source == self.lines[index].source

    @cached_property
    def tracebacks(self) -> list[Traceback]:
        """The tracebacks of the ranks in order, without the launcher's own, which only report that a rank failed."""
        return [trace for trace in self._all_tracebacks if not self._of_launcher(trace)]

    @cached_property
    def of_launcher(self) -> list[Traceback]:
        """The launcher's own tracebacks, which only report that a rank failed."""
        return [trace for trace in self._all_tracebacks if self._of_launcher(trace)]

    @cached_property
    def roles(self) -> list[Role]:
        """The role of each line."""
        traces = [(trace, self._of_launcher(trace)) for trace in self._all_tracebacks]
        given = roles(self.lines, traces)
        for index in self._ignored_lines():
            given[index] = Role.NOTICE
        return given

    def _ignored_lines(self) -> Iterator[int]:
        """The lines of exceptions that Python ignored, with a traceback or without."""
        for trace in self._printed_tracebacks:
            if trace.first in self._below_ignored:
                yield from (index for index in range(trace.first, trace.last + 1) if self._same_source(trace, index))
        yield from (index for index in self._below_ignored if is_exception(self.lines[index].text))

    @cached_property
    def _below_ignored(self) -> set[int]:
        """The first lines below those by which Python says that it ignored an exception, in a destructor: it ends no program."""
        found = set[int]()
        for indices in self.indices_by_source.values():
            written = [index for index in indices if self.lines[index].text.strip()]
            found |= {index for above, index in pairwise(written) if _IGNORED.match(self.lines[above].text)}
        return found

    @cached_property
    def wrapped_messages(self) -> tuple[str, list[int]]:
        """Exceptions whose message takes several lines, each joined into one line, and the index of the first line of each."""
        texts = [line.text for line in self.lines]
        messages: list[tuple[int, str]] = []
        for indices in self.indices_by_source.values():
            for first, lines in wrapped_messages(texts, indices):
                if self.roles[first] is Role.ERROR:
                    messages += [(first, " ".join(lines)), (first, "".join(lines))]
        messages += self._of_reprs()
        searched = [*messages[:_WRAPPED], *messages[_WRAPPED:][-_WRAPPED:]]
        return "\n".join(text for _, text in searched), [first for first, _ in searched]

    def _of_reprs(self) -> list[tuple[int, str]]:
        """Exceptions that a line which reports a failure shows as Python's repr, in the form of a traceback's last line."""
        found: list[tuple[int, str]] = []
        for index, text in enumerate(self.searched):
            raised = _REPR.search(text) if self.roles[index] in (Role.ERROR, Role.TEXT) else None
            if raised and _FAILED.search(text[: raised.start()]):
                message = text[raised.end() : max(text.rfind(raised[2]), raised.end())]
                found.append((index, f"{raised[1]}: " + message.replace("\\n", " ").replace("\\t", " ")))
        return found

    @cached_property
    def haystack(self) -> Haystack:
        """All texts in which signs are searched."""
        return Haystack(self.text, self.wrapped_messages[0])

    @cached_property
    def _all_tracebacks(self) -> list[Traceback]:
        return [
            one for one in self._printed_tracebacks if one.first not in self._below_ignored and not self._is_notice(one)
        ]

    @cached_property
    def _printed_tracebacks(self) -> list[Traceback]:
        texts = [line.text for line in self.lines]
        traces = [trace for indices in self.indices_by_source.values() for trace in tracebacks(texts, indices)]
        return sorted((self._of_one_level(trace) for trace in traces), key=lambda trace: trace.first)

    def _of_one_level(self, trace: Traceback) -> Traceback:
        """The traceback without lines after its exception that a logger printed at another level."""
        level = self.lines[trace.last].level
        for index in range(trace.last + 1, trace.end + 1):
            if self._same_source(trace, index) and self.lines[index].level != level:
                return replace(trace, end=index - 1)
        return trace

    @cached_property
    def indices_by_source(self) -> dict[Source, list[int]]:
        """The indices of the lines of each source."""
        by_source: dict[Source, list[int]] = {}
        for index, line in enumerate(self.lines):
            by_source.setdefault(line.source, []).append(index)
        return by_source

    def _is_notice(self, trace: Traceback) -> bool:
        """True if a logger printed it as a notice: the program went on.

        If each of its lines has a level, another program may have logged the output of the one that failed. The level then says
        nothing; only after a warning or a note for debugging did the program go on if it printed more.
        """
        line = self.lines[trace.first]
        if line.level not in NOTICE_LEVELS:
            return False
        if not self.lines[trace.last].level:
            return True
        return is_survived(line.level) and self._last_printed.get(line.source, -1) > trace.end

    @cached_property
    def _last_printed(self) -> dict[Source, int]:
        return last_printed(self.lines)

    def _of_launcher(self, trace: Traceback) -> bool:
        """True if the launcher raised it, which only means that a rank failed."""
        raised_in = trace.frames[-1].file if trace.frames else ""
        return any(word in self.lines[trace.last].text for word in _WRAPPERS) or bool(_LAUNCHERS.search(raised_in))

    @cached_property
    def ranks(self) -> int:
        """The number of ranks, from the world size, the marked lines or the launcher's summary; 0 if unknown."""
        said = [int(size) for size in _WORLD.findall(self.text)]
        seen = [line.rank for line in self.lines if line.rank is not None]
        listed = [int(rank) for rank in _LISTED.findall(self.text)]
        return max([*said, *(rank + 1 for rank in (*seen, *listed))], default=0)


def _without_repeats(texts: list[str]) -> list[str]:
    """The lines, with an empty text for those that differ from `2 * _REPEATS` others only in numbers, except the first and last.

    A long training prints one line of metrics a step. To search them all would take longer than everything else.
    """
    by_kind: dict[str, list[int]] = {}
    for index, text in enumerate(texts):
        by_kind.setdefault(_DIGITS.sub("", text), []).append(index)
    repeated = {index for indices in by_kind.values() for index in indices[_REPEATS:-_REPEATS]}
    return ["" if index in repeated else text for index, text in enumerate(texts)]


def _lines(source: Sequence[Excerpt]) -> list[Line]:
    printed = [line for part in source for line in _printed(part)]
    return [
        Line(
            number, read.rank, _once(_shortened(read.text).rstrip()), _shortened(shown).rstrip(), read.node, read.level
        )
        for read in prefixes.without([text for _, text in printed])
        for number, shown in printed[read.first : read.first + 1]
    ]


def _once(text: str) -> str:
    """The text without the link of a file; of an exception that two processes printed at once, what one of them did."""
    twice = _TWICE.match(text)
    if twice is None:
        return _LINKED.sub(r"\1", text)
    message = twice[2]
    half = len(message) // 2
    return f"{twice[1]}: {message[:half] if message[:half] == message[half:] else message}"


def _printed(source: Excerpt) -> Iterator[tuple[int, str]]:
    """Each line's number and text; of a progress bar only the last state, and messages printed over it."""
    for number, raw in enumerate(source.text.split("\n"), source.first_line):
        parts = [part for part in raw.split("\r") if part.strip() and part.strip() not in _FENCES]
        for part in [*(one for one in parts[:-1] if not _BAR.search(one)), *parts[-1:]]:
            yield number, _shortened(ESCAPES.sub("", _shortened(part, 2 * LONGEST_LINE)).replace("\0", ""))


def _shortened(text: str, most: int = LONGEST_LINE) -> str:
    """The text without its middle if it is too long: a message may begin with a long list and end with what is wrong."""
    return text if len(text) <= most else f"{text[: most * 3 // 4]} ... {text[-most // 4 + 5 :]}"
