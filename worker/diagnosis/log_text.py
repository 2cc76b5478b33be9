"""Parses a log: lines with their ranks and roles, tracebacks, and what the launcher reports about the ranks.

Logs may contain colors, progress bars, prefixes of launchers, log collectors and loggers, lines broken by a terminal, and the mixed
output of several ranks.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from training.redaction import ESCAPES
from worker.diagnosis.log_file import Excerpt
from worker.diagnosis.parsing import prefixes
from worker.diagnosis.parsing.chains import Chain, chains
from worker.diagnosis.parsing.needles import Haystack
from worker.diagnosis.parsing.roles import Role, is_conditional, roles
from worker.diagnosis.parsing.tracebacks import Traceback, tracebacks, wrapped_messages

LONGEST_LINE = 4000  # characters
_REPEATS = 50
_WRAPPED = 200
_DIGITS = re.compile(r"\d+")
_BAR = re.compile(r"\d+%\|")
_LAUNCHERS = re.compile(r"torch/distributed/(run|launcher|elastic)|accelerate/commands/launch|deepspeed/launcher")
_SEVERAL = re.compile(
    r"torch[./]distributed[./](?:elastic|run|launcher)|deepspeed[./]launcher|\b(?:torchrun|mpirun|srun) "
)
_ERROR_WORD = re.compile(
    r"error(?! (?:traces?|reports?|rates?)\b)|exception|traceback|fatal|abort|failed|killed|cannot|denied"
    r"|(?::|\b(?:command|file|folder|module|package|library|model|dataset)) not found",
    re.I,
)
_FENCES = ("```", "~~~")
_WRAPPERS = ("ChildFailedError", "CalledProcessError", "SignalException")
_ROOT_CAUSE = re.compile(r"Root Cause \(first observed failure\):.*?^\s*rank\s*: (\d{1,5})", re.S | re.M)
_FIRST_EXIT = re.compile(r"failed \(exitcode: -?\d+\) local_rank: (\d{1,5})")
_WORLD = re.compile(r"(?:world[_ ]size|nproc[_-]per[_-]node|num_processes)[\s=:'\"]+(\d{1,5})\b", re.I)
_LISTED = re.compile(r"^\s*rank\s*: (\d{1,5}) \(local_rank", re.M)
_LOSS = re.compile(r"['\"]loss['\"]: '?[\d.naif]+")
_OF_STEP = re.compile(r"\b(?:[Ss]teps?|[Ii]ter|[Ii]teration|[Ee]poch)\b|\d(?:it/s|s/it)\b")
_LOSS_OF_STEP = re.compile(r"[Ll]oss['\"]?\s{0,3}[:=]\s{0,3}-?\d+\.\d")
_VALUE = re.compile(r"\b(\w*[Ll]oss|grad[_ ]norm)['\"]?\s*[:= ]\s*['\"]?(?:tensor\()?((?i:nan|inf)|-?[\d.]+)")
_STARTED = re.compile(
    r"^(?:.*\*{5} Running training \*{5}|\S*[$#] *(?:\w+=\S+ )*(?:accelerate|torchrun|deepspeed|python3?|llamafactory-cli|axolotl) "
    r")|'train_runtime': |Setting OMP_NUM_THREADS environment variable for each process|will restart worker group"
    r"|^(?!Traceback)\S[^\n]*\n+(?=  File \"[^\"\n]+\", line \d+\n(?:[^\n]*\n){1,7}?[^\n]*(?:Syntax|Indentation|Tab)Error)",
    re.M,
)
"""Training began or ended, or a launcher started.

A script that Python cannot parse, shown without the header of a traceback, ends before it begins.
"""


@dataclass(frozen=True)
class Line:
    """A line of a log: `number` from 1, `rank` and `node` if they are marked, `text` without prefixes, `shown` with them.

    `level` is that of a logger whose prefix was removed.
    """

    number: int
    rank: int | None
    text: str
    shown: str
    node: int | None = None
    level: str = ""

    @property
    def source(self) -> tuple[int | None, int | None]:
        """The node and the rank that printed it: lines of one source belong together."""
        return self.node, self.rank


class Log:
    """A parsed log. `text` is its lines without the marks of ranks; of lines that repeat very often, most are empty there."""

    def __init__(self, source: Sequence[Excerpt]) -> None:
        self.lines = _lines(source)
        searched = _without_repeats([line.text for line in self.lines])
        self.text = "\n".join(searched)
        self._searched = searched
        self._starts = [0]
        for text in searched:
            self._starts.append(self._starts[-1] + len(text) + 1)

    def place(self, offset: int) -> int:
        """The index in `lines` of a character of `text`."""
        return min(bisect_right(self._starts, offset) - 1, len(self.lines) - 1)

    def following(self, place: int, count: int) -> str:
        """The line at an index joined with the next lines of the same rank, `count` in all."""
        own = [line for line in self.lines[place : place + 4 * count] if line.source == self.lines[place].source]
        return " ".join(line.text for line in own[:count])

    def trained_after(self, place: int) -> bool:
        """True if a loss was logged after the line."""
        return bool(self._losses) and self._losses[-1] > place

    def training_continued_after(self, place: int) -> bool:
        """True if at least three losses were logged after the line, or training began or ended after it."""
        losses = len(self._losses) - bisect_right(self._losses, place)
        return losses >= 3 or (bool(self._starts_and_ends) and self._starts_and_ends[-1] > place)

    @cached_property
    def failed(self) -> bool:
        """True if the log shows an error after which training did not continue."""
        return self.first_error is not None

    @cached_property
    def first_error(self) -> Line | None:
        """The first line with an error after which training did not continue."""
        places = (place for place, role in enumerate(self.roles) if role is Role.ERROR)
        return next((self.lines[place] for place in places if not self.training_continued_after(place)), None)

    @cached_property
    def first_mention(self) -> Line | None:
        """The first line that mentions an error, outside of notices, code and advice, after which training did not continue."""
        for place, (line, role) in enumerate(zip(self.lines, self.roles, strict=True)):
            word = _ERROR_WORD.search(line.text) if role in (Role.ERROR, Role.TEXT) else None
            if word and not is_conditional(line.text[: word.start()]) and not self.training_continued_after(place):
                return line
        return None

    @cached_property
    def shows_training(self) -> bool:
        """True if the loss of a step was logged."""
        return bool(self._losses)

    @cached_property
    def ends_not_finite(self) -> bool:
        """True if the last two losses or gradient norms are NaN or infinite, or the last is the first that is."""
        values: dict[str, list[bool]] = {}
        for name, value in _VALUE.findall(self.text):
            values.setdefault(name, []).append(value.lower() not in ("nan", "inf"))
        return any(not any(finite[-2:]) or all(finite[:-1]) > finite[-1] for finite in values.values())

    def traceback_at(self, place: int) -> Traceback | None:
        """The traceback that contains the line, or that the same rank printed just before it."""
        near = [
            one
            for one in self.tracebacks
            if one.first <= place <= max(one.end, one.last + 3) and self._same_source(one, place)
        ]
        return near[-1] if near else None

    def raised_inside(self, place: int, code: re.Pattern[str]) -> bool:
        """True if the line is of an exception with a frame in a file or function that matches."""
        trace = self.traceback_at(place)
        return trace is not None and any(code.search(f"{one.file} {one.function} {one.code}") for one in trace.frames)

    def _same_source(self, one: Traceback, place: int) -> bool:
        return self.lines[one.first].source == self.lines[place].source

    @cached_property
    def tracebacks(self) -> list[Traceback]:
        """The tracebacks of the ranks in order, without the launcher's own, which only report that a rank failed."""
        return [one for one in self._all_tracebacks if not self.of_launcher(one)]

    @cached_property
    def endings(self) -> list[Chain]:
        """For each rank and child process the exception that ended it, with its causes.

        If the lines do not show which of several ranks printed them, every exception is one.
        """
        found: list[Chain] = []
        for source, places in self._places_by_source.items():
            joined = self._fatal_chains(source, places)
            fatal = [one for one in joined if not one.beside] or joined
            unmarked = source[1] is None and (self.ranks > 1 or _SEVERAL.search(self.text) is not None)
            found += [one for one in fatal if unmarked or one.child or one is fatal[-1]]
        return [one for one in found if not one.beside] or found

    def _fatal_chains(self, source: tuple[int | None, int | None], places: list[int]) -> list[Chain]:
        """The exceptions of one source, with their causes, after which training did not continue."""
        texts = [line.text for line in self.lines]
        own = [one for one in self.tracebacks if self.lines[one.first].source == source]
        return [one for one in chains(texts, places, own) if not self.training_continued_after(one.links[-1].last)]

    @cached_property
    def roles(self) -> list[Role]:
        """The role of each line."""
        found = [(one, self.of_launcher(one)) for one in self._all_tracebacks]
        return roles(self.lines, found)

    @cached_property
    def wrapped_messages(self) -> tuple[str, list[int]]:
        """Exceptions whose message takes several lines, each joined into one line, and the index of the first line of each."""
        texts = [line.text for line in self.lines]
        found: list[tuple[int, str]] = []
        for places in self._places_by_source.values():
            for first, lines in wrapped_messages(texts, places):
                if self.roles[first] is Role.ERROR:
                    found += [(first, " ".join(lines)), (first, "".join(lines))]
        searched = [*found[:_WRAPPED], *found[_WRAPPED:][-_WRAPPED:]]
        return "\n".join(text for _, text in searched), [first for first, _ in searched]

    @cached_property
    def haystack(self) -> Haystack:
        """All texts in which signs are searched."""
        return Haystack(self.text, self.wrapped_messages[0])

    @cached_property
    def _all_tracebacks(self) -> list[Traceback]:
        texts = [line.text for line in self.lines]
        found = [one for places in self._places_by_source.values() for one in tracebacks(texts, places)]
        return sorted(found, key=lambda one: one.first)

    @cached_property
    def _places_by_source(self) -> dict[tuple[int | None, int | None], list[int]]:
        by_source: dict[tuple[int | None, int | None], list[int]] = {}
        for place, line in enumerate(self.lines):
            by_source.setdefault(line.source, []).append(place)
        return by_source

    def of_launcher(self, one: Traceback) -> bool:
        """True if the launcher raised it, which only means that a rank failed."""
        raised_in = one.frames[-1].file if one.frames else ""
        return any(word in self.lines[one.last].text for word in _WRAPPERS) or bool(_LAUNCHERS.search(raised_in))

    @cached_property
    def root_rank(self) -> int | None:
        """The rank that failed first, according to the launcher."""
        return int(self._root[1]) if self._root else None

    @cached_property
    def root_node(self) -> int | None:
        """The node whose launcher was the first to report a rank that failed."""
        first = _FIRST_EXIT.search(self.text) or self._root
        return self.lines[self.place(first.start())].node if first else None

    @cached_property
    def _root(self) -> re.Match[str] | None:
        return _ROOT_CAUSE.search(self.text) or _FIRST_EXIT.search(self.text)

    def is_elsewhere(self, place: int) -> bool:
        """True if another rank or node printed the line than the one that failed first, according to the launcher."""
        line = self.lines[place]
        return (None not in (self.root_rank, line.rank) and line.rank != self.root_rank) or (
            None not in (self.root_node, line.node) and line.node != self.root_node
        )

    @cached_property
    def ranks(self) -> int:
        """The number of ranks, from the world size, the marked lines or the launcher's summary; 0 if unknown."""
        said = [int(size) for size in _WORLD.findall(self.text)]
        seen = [line.rank for line in self.lines if line.rank is not None]
        listed = [int(rank) for rank in _LISTED.findall(self.text)]
        return max([*said, *(rank + 1 for rank in (*seen, *listed))], default=0)

    @cached_property
    def _losses(self) -> list[int]:
        """The lines with a loss, in order."""
        return [place for place, line in enumerate(self._searched) if "oss" in line and _has_loss(line)]

    @cached_property
    def _starts_and_ends(self) -> list[int]:
        return [self.place(found.end()) for found in _STARTED.finditer(self.text)]


def _has_loss(line: str) -> bool:
    """True if a training loop printed the loss of a step."""
    return bool(_LOSS.search(line) or (_LOSS_OF_STEP.search(line) and _OF_STEP.search(line)))


def _without_repeats(texts: list[str]) -> list[str]:
    """The lines, with an empty text for those that differ from `2 * _REPEATS` others only in numbers, except the first and last.

    A long training prints one line of metrics a step. To search them all would take longer than everything else.
    """
    by_kind: dict[str, list[int]] = {}
    for place, text in enumerate(texts):
        by_kind.setdefault(_DIGITS.sub("", text), []).append(place)
    repeated = {place for places in by_kind.values() for place in places[_REPEATS:-_REPEATS]}
    return ["" if place in repeated else text for place, text in enumerate(texts)]


def _lines(source: Sequence[Excerpt]) -> list[Line]:
    printed = [line for part in source for line in _printed(part)]
    return [
        Line(number, one.rank, _shortened(one.text).rstrip(), _shortened(shown).rstrip(), one.node, one.level)
        for one in prefixes.without([text for _, text in printed])
        for number, shown in printed[one.first : one.first + 1]
    ]


def _printed(source: Excerpt) -> Iterator[tuple[int, str]]:
    """Each line's number and text; of a progress bar only the last state, and messages printed over it."""
    for number, raw in enumerate(source.text.split("\n"), source.first_line):
        parts = [part for part in raw.split("\r") if part.strip() and part.strip() not in _FENCES]
        for part in [*(one for one in parts[:-1] if not _BAR.search(one)), *parts[-1:]]:
            yield number, _shortened(ESCAPES.sub("", _shortened(part, 2 * LONGEST_LINE)).replace("\0", ""))


def _shortened(text: str, most: int = LONGEST_LINE) -> str:
    """The text without its middle if it is too long: a message may begin with a long list and end with what is wrong."""
    return text if len(text) <= most else f"{text[: most * 3 // 4]} ... {text[-most // 4 + 5 :]}"
