"""Finds the signs of causes in a log, and which of them explain how the run ended."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

from worker.diagnosis.cause import Cause, Kind, Sign
from worker.diagnosis.log import Log
from worker.diagnosis.parsing.chains import Chain
from worker.diagnosis.parsing.frames import raised_by_package
from worker.diagnosis.parsing.roles import Role, is_conditional

_PER_SIGN = 200  # matches of one sign; a warning may be printed a million times
_REPORT = re.compile(
    r"(?:\w+\.)*(?:CalledProcessError|ChildFailedError|EOFError|ConnectionResetError|BrokenPipe\w*|SystemExit|ProcessExitedException"
    r"|ProcessRaisedException|RemoteError|RayTaskError)\b|.*(?:CUDA|CUBLAS|cuBLAS|CUDNN|NCCL|HIP) ?(?:error|Error|_STATUS)"
    r"|.*DataLoader worker|.*subprocess"
)
"""Exceptions that only report what another process or a device printed before."""
_LOOKED_UP = re.compile(r"(?:\w+\.)*(?:Key|Index|Attribute|Type|ModuleNotFound|FileNotFound)Error\b|StopIteration\b")
"""Exceptions of a first attempt, after which a program often tries something else."""
_MISTAKE = re.compile(r"(?:Type|Syntax|Indentation)Error\b(?!.*NoneType)")
"""Exceptions of wrong code. One about None often follows in a cleanup, since the failure left a value unset."""
_BY_USER = re.compile("KeyboardInterrupt")


@dataclass(frozen=True)
class Match:
    """A sign found in the log, at the index `place` of its lines."""

    cause: Cause
    sign: Sign
    kind: Kind
    place: int
    words: dict[str, str]
    role: Role
    continued: bool
    """True if training continued after it."""
    elsewhere: bool
    """True if another rank or node printed it than the one that failed first, according to the launcher."""
    decides: bool = False
    """True if it is in the exception that ended the run, or in that one's cause if no sign matches the exception itself."""

    @property
    def order(self) -> tuple[bool, int, bool, bool, int, int, float]:
        return (
            self.continued,
            self.kind,
            self.elsewhere,
            not self.decides,
            self.role,
            self.place,
            -self.sign.confidence,
        )


def explaining_matches(log: Log, causes: Iterable[Cause]) -> list[Match]:
    """The matches that explain how the run ended, the best first."""
    found = _with_deciding(log, [match for cause in causes for match in _matches(cause, log)])
    return sorted(_explaining(log, found), key=lambda match: match.order)


def is_of_root(log: Log) -> bool:
    """True if the rank that failed first, according to the launcher, printed an exception that ended it."""
    return any(log.lines[one.links[0].first].rank == log.timeline.root_rank is not None for one in log.timeline.endings)


def ending(log: Log) -> Chain | None:
    """The exception that ended the rank that failed first; of any rank if that has none."""
    of_root = [one for one in log.timeline.endings if log.lines[one.links[0].first].rank == log.timeline.root_rank]
    return min(of_root or log.timeline.endings, key=lambda one: one.links[0].first, default=None)


def _with_deciding(log: Log, matches: list[Match]) -> list[Match]:
    """The matches, with those marked that are in the last exception of an ending that has any."""
    deciding: set[int] = set()
    for chain in log.timeline.endings:
        for link in reversed(chain.links):
            own = {
                match.cause.name: match.place
                for match in matches
                if match.kind is Kind.ERROR and link.last <= match.place <= link.end
            }
            if own:  # an earlier exception of the same cause in the chain is where it began
                deciding |= {one.place for one in matches if one.cause.name in own and chain.raised_at(one.place)}
                deciding |= set(own.values())
                break
    return [replace(match, decides=match.kind is Kind.ERROR and match.place in deciding) for match in matches]


def _explaining(log: Log, matches: list[Match]) -> list[Match]:
    """The matches that explain how the run ended: those in the final exception or its causes, or all if there is none.

    Other output counts only beside an exception that reports what happened elsewhere, or if it was printed afterwards.
    """
    ended = ending(log)
    if ended is None:
        return [one for one in matches if _ends_without_exception(one, log)]
    final = log.lines[ended.links[-1].last].text
    reports = not _BY_USER.match(final) and (bool(_REPORT.match(final)) or _is_consequence(matches, log))
    return [
        one
        for one in matches
        if (
            ended.contains(one.place)
            if one.kind is Kind.SYMPTOM
            else (reports and one.role is Role.ERROR) or _is_of_ending(one, log)
        )
    ]


def _ends_without_exception(match: Match, log: Log) -> bool:
    """True if the match may show how a run without an exception ended: by an error, or by one of its last lines."""
    if log.timeline.failed:
        return True
    if match.kind is Kind.SYMPTOM:
        return match.sign.lasting and log.ends_not_finite
    return log.timeline.is_last(match.place)


def _is_of_ending(match: Match, log: Log) -> bool:
    """True if the match is in an exception that ended a rank or in one of its causes, or was printed afterwards."""
    for chain in log.timeline.endings:
        if chain.contains(match.place):
            earlier = match.place < chain.links[-1].first
            return not (
                earlier and chain.handled and (_LOOKED_UP.match(log.lines[match.place].text) or _is_mistake(chain, log))
            )
        if match.place > chain.links[-1].end and not _BY_USER.match(log.lines[chain.links[-1].last].text):
            return True
    return False


def _is_mistake(chain: Chain, log: Log) -> bool:
    """True if the exception that ended the run is a mistake in the user's own code."""
    last = chain.links[-1]
    return bool(_MISTAKE.match(log.lines[last.last].text)) and not raised_by_package(last.frames)


def _is_consequence(matches: list[Match], log: Log) -> bool:
    """True if an exception that ended a rank is known as one that follows another rank's or device's failure."""
    places = [match.place for match in matches if match.kind is Kind.CONSEQUENCE]
    return any(chain.contains(place) for chain in log.timeline.endings for place in places)


def _matches(cause: Cause, log: Log) -> list[Match]:
    return [
        _match(cause, one, log, place, match)
        for one in cause.signs
        for place, match in _occurrences(one.pattern, log)
        if (one.inside is None or log.raised_inside(place, one.inside))
        and (one.when is None or one.when(log, place))
        and not _is_advice(log, place, match)
    ]


def _is_advice(log: Log, place: int, match: re.Match[str]) -> bool:
    """True for a text that says what to do if the error occurs, outside of exceptions and errors."""
    if log.roles[place] is Role.ERROR:
        return False
    return is_conditional(match.string[match.string.rfind("\n", 0, match.start()) + 1 : match.start()])


def _occurrences(pattern: re.Pattern[str], log: Log) -> Iterator[tuple[int, re.Match[str]]]:
    """Where a pattern matches outside of code: in a line, or in an exception's message that a console has wrapped."""
    if not log.haystack.may_contain(pattern):
        return
    found = set()
    for match in islice(pattern.finditer(log.text), _PER_SIGN):
        place = log.place(max(match.start(), match.end() - 1))  # of several lines the last, which is the error
        found.add(place)
        if log.roles[place] is not Role.CODE:
            yield place, match
    text, places = log.wrapped_messages
    for match in islice(pattern.finditer(text), _PER_SIGN):
        place = places[text.count("\n", 0, match.start())]
        if place not in found:
            yield place, match


def _match(cause: Cause, one: Sign, log: Log, place: int, match: re.Match[str]) -> Match:
    role = log.roles[place]
    words = {name: word for name, word in match.groupdict().items() if word}
    kind = Kind.SYMPTOM if role is Role.NOTICE and not one.notice else one.kind
    survived = kind is not Kind.SYMPTOM and (
        log.timeline.continued_after(place) or (role is Role.TEXT and log.timeline.trained_after(place))
    )
    return Match(cause, one, kind, place, words, role, survived, log.timeline.is_elsewhere(place))
