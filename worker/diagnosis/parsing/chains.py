"""Joins tracebacks that belong together: an exception and those that were raised because of it or while it was handled."""

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from worker.diagnosis.parsing.tracebacks import Traceback

_HANDLED = re.compile(r"During handling of the above exception, another exception occurred")
_LINK = re.compile(rf"The above exception was the direct cause of|{_HANDLED.pattern}|^\s*Original Traceback ")
_CHILD = re.compile(r"Process \S+:$")
_IGNORED = re.compile(r"Exception ignored in|-{3} Logging error -{3}")
_BESIDE = re.compile(rf"{_IGNORED.pattern}|Exception in|Error in (?:atexit|sys\.)|Exception caught in")


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

    def raised_at(self, place: int) -> bool:
        """True if the line is in the message of one of the exceptions."""
        return any(link.last <= place <= link.end for link in self.links)

    def contains(self, place: int) -> bool:
        """True if the line is in one of the tracebacks or between two of them."""
        return self.links[0].first <= place <= self.links[-1].end


def chains(texts: Sequence[str], places: Sequence[int], found: Sequence[Traceback]) -> list[Chain]:
    """The chains of the tracebacks of one rank; `places` are the indices of its lines in `texts`."""
    joined: list[Chain] = []
    for one in found:
        previous = joined[-1] if joined else None
        start = previous.links[-1].last if previous else -1
        between = [texts[place] for place in places[bisect_right(places, start) : bisect_right(places, one.first)]]
        if previous and any(_LINK.search(text) for text in between):
            handled = any(_HANDLED.search(text) for text in between)
            joined[-1] = Chain((*previous.links, one), handled, previous.beside, previous.child)
        else:
            above = _above(between)
            beside, child, ignored = (any(map(mark.match, above)) for mark in (_BESIDE, _CHILD, _IGNORED))
            joined.append(Chain((one,), beside=beside, child=child, ignored=ignored))
    return joined


def _above(between: Sequence[str]) -> Sequence[str]:
    """The last lines above a traceback; a notebook begins its own with a line of dashes."""
    last = between[-3:]
    ruled = [index for index, text in enumerate(last) if text.startswith("-----")]
    return last[ruled[-1] :] if ruled else last
