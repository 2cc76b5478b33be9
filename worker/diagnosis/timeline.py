"""The events of a log in time: starts, steps, exceptions, processes that exited, and other reports of errors.

A diagnosis looks for the end of the run in them, and walks back to its first cause.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property

from worker.diagnosis.log_text import LogText
from worker.diagnosis.parsing.lines import Line, Role, Source, is_conditional
from worker.diagnosis.parsing.tracebacks import Chain, chains

_LAST = 30  # lines that may follow the one that says why a program ended
_STEPS = 3  # logged after an error, they show that training continued
_SEVERAL = re.compile(
    r"torch[./]distributed[./](?:elastic|run|launcher)|deepspeed[./]launcher|\b(?:torchrun|mpirun|srun) "
)
_MENTION = re.compile(
    r"(?<!\b0 )error(?! (?:traces?|reports?|rates?)\b|s? ?[:=]? ?[\d.]+(?:[\s,;%)]|$))"
    r"|(?<!add an )exception|traceback|fatal|abort|failed|killed|cannot|denied"
    r"|(?::|\b(?:command|file|folder|module|package|library|model|dataset)) not found",
    re.I,
)
_SCRIPT = re.compile(r"[\w./\\-]+\.py(?:::[\w\[\].-]+)*(?!:\d)")
"""A script or a test, whose name may contain any word."""
_ROW = re.compile(r"\s*\[?\{")  # of data or metrics: it may contain any word
_ROOT_CAUSE = re.compile(r"Root Cause \(first observed failure\):.*?^\s*rank\s*: (\d{1,5})", re.S | re.M)
_EXIT = re.compile(r"failed \(exitcode: -?\d+\) local_rank: (\d{1,5})")
_LOSS = re.compile(r"['\"]loss['\"]: '?[\d.naif]+")
_OF_STEP = re.compile(r"\b(?:[Ss]teps?|[Ii]ter|[Ii]teration|[Ee]poch)\b|\d(?:it/s|s/it)\b|\bval_\w+ ?[:=]")
_LOSS_OF_STEP = re.compile(r"[Ll]oss['\"]?(?:\s{0,3}[:=]\s{0,3}|\s{1,3})(?:[\w.]{1,20}\()?-?\d+\.\d")
_STARTED = re.compile(
    r"^(?:.*\*{5} Running training \*{5}|\S*[$#] *(?:\w+=\S+ )*(?:accelerate|torchrun|deepspeed|python3?|llamafactory-cli|axolotl) "
    r")|'train_runtime': |Setting OMP_NUM_THREADS environment variable for each process|will restart worker group"
    r"|^(?!Traceback)\S[^\n]*\n+(?=  File \"[^\"\n]+\", line \d+\n(?:[^\n]*\n){1,7}?[^\n]*(?:Syntax|Indentation|Tab)Error)",
    re.M,
)
"""Training began or ended, or a launcher started.

A script that Python cannot parse, shown without the header of a traceback, ends before it begins.
"""
_DIGITS = re.compile(r"\d+")
_REPEATED = re.compile(rf"(?i:warn)|\d%\||{_LOSS.pattern}|{_LOSS_OF_STEP.pattern}")
"""A warning, a progress bar or a step: a program prints the same again without a restart."""
_SHORTEST_START = 20  # letters of a line that tells the start of a program from other lines


class EventKind(Enum):
    """What happened."""

    START = auto()  # a launcher or training started, or training ended by itself
    STEP = auto()  # the loss of a step was logged
    EXCEPTION = auto()  # with those that it was raised because of
    EXIT = auto()  # a launcher reports a process that failed
    REPORT = auto()  # another line that reports an error: of a library, a watchdog, a scheduler, the kernel


_OTHER = (Role.TEXT, Role.NOTICE)
_ERRORS = (EventKind.EXCEPTION, EventKind.EXIT, EventKind.REPORT)


@dataclass(frozen=True)
class LogEvent:
    """An event at an `index` of a log's lines: for an exception, that of the last one's message.

    `chain` are the exceptions; `rank` is that of the process that exited, if the launcher names it.
    """

    kind: EventKind
    index: int
    chain: Chain | None = None
    rank: int | None = None


class Timeline:
    """The events of a log, in order."""

    def __init__(self, log: LogText) -> None:
        self._log = log
        steps = list(_steps(log))
        raised = [one for one in _exceptions(log) if not (one.chain and one.chain.ignored and steps)]
        found = [*_starts(log), *steps, *raised, *_exits(log), *_reports(log)]
        self.events = sorted(found, key=lambda event: event.index)
        self._written = [
            index for index, role in enumerate(log.roles) if role in _OTHER and log.lines[index].text.strip()
        ]
        self._steps = [event.index for event in self.events if event.kind is EventKind.STEP]
        self._last_start = max((event.index for event in self.events if event.kind is EventKind.START), default=-1)

    @property
    def shows_training(self) -> bool:
        """True if the loss of a step was logged."""
        return bool(self._steps)

    def trained_after(self, index: int) -> bool:
        """True if a loss was logged after the line."""
        return bool(self._steps) and self._steps[-1] > index

    def continued_after(self, index: int) -> bool:
        """True if at least three losses were logged after the line, or training began or ended after it."""
        return self._last_start > index or len(self._steps) - bisect_right(self._steps, index) >= _STEPS

    @property
    def failed(self) -> bool:
        """True if the log shows an error after which training did not continue."""
        return self.first_error is not None

    @cached_property
    def first_error(self) -> Line | None:
        """The first line with an exception, or near the end with a report, after which training did not continue."""
        found = (event for event in self.events if event.kind in _ERRORS and not self.continued_after(event.index))
        indices = (one.index for one in found if one.kind is not EventKind.REPORT or self.is_last(one.index))
        return next((self._log.lines[index] for index in indices), None)

    @cached_property
    def first_mention(self) -> Line | None:
        """The first line near the end that mentions an error, outside of notices, code and advice."""
        for index, (line, role) in enumerate(zip(self._log.lines, self._log.roles, strict=True)):
            printed = role in (Role.ERROR, Role.TEXT) and not _ROW.match(line.text)
            text = _SCRIPT.sub("", line.text)
            word = _MENTION.search(text) if printed else None
            if word and self._is_end(index) and not is_conditional(text[: word.start()]):
                return line
        return None

    def _is_end(self, index: int) -> bool:
        """True if the run may have ended at the line."""
        return self.is_last(index) and not self.continued_after(index)

    def is_last(self, index: int) -> bool:
        """True if the program printed little else after the line than errors and code."""
        return len(self._written) - bisect_right(self._written, index) <= _LAST

    @cached_property
    def endings(self) -> list[Chain]:
        """For each rank and child process the exception that ended it, with its causes.

        If the lines do not show which of several ranks printed them, every exception is one.
        """
        by_source: dict[Source, list[Chain]] = {}
        for event in self.events:
            if event.chain and not self.continued_after(event.index):
                by_source.setdefault(self._log.lines[event.index].source, []).append(event.chain)
        fatal = [chain for source, joined in by_source.items() for chain in self._fatal(source, joined)]
        return [chain for chain in fatal if not chain.beside] or fatal

    def _fatal(self, source: Source, joined: Sequence[Chain]) -> list[Chain]:
        """Of the exceptions of one source those that ended a process."""
        fatal = [chain for chain in joined if not chain.beside] or joined
        unmarked = source[1] is None and (self._log.ranks > 1 or _SEVERAL.search(self._log.text) is not None)
        return [chain for chain in fatal if unmarked or chain.child or chain is fatal[-1]]

    @cached_property
    def root_rank(self) -> int | None:
        """The rank that failed first, according to the launcher."""
        summary = _ROOT_CAUSE.search(self._log.text)
        ranks = (event.rank for event in self.events if event.rank is not None)
        return int(summary[1]) if summary else next(ranks, None)

    @cached_property
    def root_node(self) -> int | None:
        """The node whose launcher was the first to report a rank that failed."""
        exits = [event.index for event in self.events if event.rank is not None]
        summary = _ROOT_CAUSE.search(self._log.text)
        indices = exits or ([self._log.index_of(summary.start())] if summary else [])
        return self._log.lines[indices[0]].node if indices else None

    def is_elsewhere(self, index: int) -> bool:
        """True if another rank or node printed the line than the one that failed first, according to the launcher."""
        line = self._log.lines[index]
        return (None not in (self.root_rank, line.rank) and line.rank != self.root_rank) or (
            None not in (self.root_node, line.node) and line.node != self.root_node
        )


def _starts(log: LogText) -> Iterator[LogEvent]:
    for found in _STARTED.finditer(log.text):
        yield LogEvent(EventKind.START, log.index_of(found.end()))
    yield from _restarts(log)


def _restarts(log: LogText) -> Iterator[LogEvent]:
    """Where the first line of the log returns right after an error: the program was started again."""
    first = next((index for index, line in enumerate(log.lines) if line.text.strip()), None)
    if first is None or log.roles[first] in (Role.ERROR, Role.CODE):
        return
    if len(_words(log, first)) < _SHORTEST_START or _REPEATED.search(log.lines[first].text):
        return
    after_error = False
    for index in range(first + 1, len(log.lines)):
        if (
            after_error
            and _words(log, index) == _words(log, first)
            and log.lines[index].source == log.lines[first].source
        ):
            yield LogEvent(EventKind.START, index)
        if log.lines[index].text.strip():
            after_error = log.roles[index] is Role.ERROR


def _words(log: LogText, index: int) -> str:
    return _DIGITS.sub("", log.lines[index].text)


def _steps(log: LogText) -> Iterator[LogEvent]:
    for index, text in enumerate(log.searched):
        if "oss" in text and (_LOSS.search(text) or (_LOSS_OF_STEP.search(text) and _OF_STEP.search(text))):
            yield LogEvent(EventKind.STEP, index)


def _exceptions(log: LogText) -> Iterator[LogEvent]:
    texts = [line.text for line in log.lines]
    for source, indices in log.indices_by_source.items():
        own = [one for one in log.tracebacks if log.lines[one.first].source == source]
        for chain in chains(texts, indices, own):
            yield LogEvent(EventKind.EXCEPTION, chain.links[-1].last, chain=chain)


def _exits(log: LogText) -> Iterator[LogEvent]:
    for one in log.of_launcher:
        yield LogEvent(EventKind.EXIT, one.last)
    for found in _EXIT.finditer(log.text):
        yield LogEvent(EventKind.EXIT, log.index_of(found.start()), rank=int(found[1]))


def _reports(log: LogText) -> Iterator[LogEvent]:
    raised = {index for one in log.tracebacks for index in range(one.last, one.end + 1)}
    for index, role in enumerate(log.roles):
        if role is Role.ERROR and index not in raised and not _EXIT.search(log.lines[index].text):
            yield LogEvent(EventKind.REPORT, index)


class Log(LogText):
    """A log with its timeline."""

    @cached_property
    def timeline(self) -> Timeline:
        """The events of the log, in order."""
        return Timeline(self)
