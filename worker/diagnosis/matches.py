"""Finds the signs of causes in a log, and which of them explain how the run ended."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

from worker.diagnosis.cause import Cause, CauseKind, Sign
from worker.diagnosis.parsing.lines import Role, is_conditional
from worker.diagnosis.parsing.tracebacks import Chain, raised_by_package
from worker.diagnosis.timeline import Log

_PER_SIGN = 200  # matches of one sign; a warning may be printed a million times
_REPORT = re.compile(
    r"(?:\w+\.)*(?:CalledProcessError|ChildFailedError|EOFError|ConnectionResetError|BrokenPipe\w*|SystemExit|ProcessExitedException"
    r"|ProcessRaisedException|RemoteError|RayTaskError|DistBackendError)\b"
    r"|.*(?:CUDA|CUBLAS|cuBLAS|CUDNN|NCCL|HIP) ?(?:error|Error|_STATUS)"
    r"|.*DataLoader worker|.*subprocess"
    r"|.*\b(?:[Ss]ee|[Cc]heck|[Ii]nspect|[Rr]ead) (?:the )?(?:previous |above )?"
    r"(?:root cause|(?:error|log|traceback|stack ?trace|output)s?)\b"
)
"""Exceptions that only report what another process or a device printed before."""
_LOOKED_UP = re.compile(r"(?:\w+\.)*(?:Key|Index|Attribute|Type|ModuleNotFound|FileNotFound)Error\b|StopIteration\b")
"""Exceptions of a first attempt, after which a program often tries something else."""
_MISTAKE = re.compile(r"(?:Type|Syntax|Indentation)Error\b(?!.*NoneType)")
"""Exceptions of wrong code. One about None often follows in a cleanup, since the failure left a value unset."""
_BY_USER = re.compile("KeyboardInterrupt")
_INTERRUPTED = "interrupted"
"""The cause that a person ended the training."""


@dataclass(frozen=True)
class Match:
    """A sign found in the log, at an `index` of its lines."""

    cause: Cause
    sign: Sign
    kind: CauseKind
    index: int
    words: dict[str, str]
    role: Role
    continued: bool
    """True if training continued after it."""
    elsewhere: bool
    """True if another rank or node printed it than the one that failed first, according to the launcher."""
    decides: bool = False
    """True if it is in the exception that ended the run, or in that one's cause if no sign matches the exception itself."""
    earlier: bool = False
    """True if it was printed before the exception that ended the run, which no sign explains."""

    @property
    def order(self) -> tuple[bool, int, bool, bool, int, int, float]:
        surest = -self.sign.confidence
        return self.continued, self.kind, self.elsewhere, not self.decides, self.role, self.index, surest


def explaining_matches(log: Log, causes: Iterable[Cause]) -> list[Match]:
    """The matches that explain how the run ended, the best first."""
    found = _with_deciding(log, [match for cause in causes for match in _matches(cause, log)])
    return sorted(_before_interruption(log, found, _explaining(log, found)), key=lambda match: match.order)


def is_of_root(log: Log) -> bool:
    """True if the rank that failed first, according to the launcher, printed an exception that ended it."""
    return any(
        log.lines[chain.links[0].first].rank == log.timeline.root_rank is not None for chain in log.timeline.endings
    )


def ending(log: Log) -> Chain | None:
    """The exception that ended the rank that failed first; of any rank if that has none."""
    of_root = [
        chain for chain in log.timeline.endings if log.lines[chain.links[0].first].rank == log.timeline.root_rank
    ]
    return min(of_root or log.timeline.endings, key=lambda chain: chain.links[0].first, default=None)


def _with_deciding(log: Log, matches: list[Match]) -> list[Match]:
    """The matches, with those marked that are in the last exception of an ending that has any."""
    deciding: set[int] = set()
    for chain in log.timeline.endings:
        for link in reversed(chain.links):
            own = {
                match.cause.name: match.index
                for match in matches
                if match.kind is CauseKind.ERROR and link.last <= match.index <= link.end
            }
            if own:  # an earlier exception of the same cause in the chain is where it began
                deciding |= {one.index for one in matches if one.cause.name in own and chain.raised_at(one.index)}
                deciding |= set(own.values())
                break
    return [replace(match, decides=match.kind is CauseKind.ERROR and match.index in deciding) for match in matches]


def _explaining(log: Log, matches: list[Match]) -> list[Match]:
    """The matches that explain how the run ended: those in the final exception or its causes, or all if there is none.

    Other output counts only beside an exception that reports what happened elsewhere, or if it was printed afterwards.
    """
    ended = ending(log)
    if ended is None:
        return [match for match in matches if _ends_without_exception(match, log)]
    final = log.lines[ended.links[-1].last].text
    reports = not _BY_USER.match(final) and (bool(_REPORT.match(final)) or _is_consequence(matches, log))
    found = [
        match
        for match in matches
        if (
            ended.contains(match.index)
            if match.kind is CauseKind.SYMPTOM
            else (reports and match.role is Role.ERROR) or _is_of_ending(match, log)
        )
    ]
    if _BY_USER.match(final) or any(match.kind is not CauseKind.SYMPTOM for match in found):
        return found
    return [*found, *(replace(match, earlier=True) for match in matches if _led_to(match, ended, log))]


def _before_interruption(log: Log, found: list[Match], explaining: list[Match]) -> list[Match]:
    """The matches that explain the end; of a training that a person interrupted, why: its last losses were not finite."""
    if not log.ends_not_finite or any(match.cause.name != _INTERRUPTED for match in explaining):
        return explaining
    return [match for match in found if match.sign.lasting] or explaining


def _led_to(match: Match, ended: Chain, log: Log) -> bool:
    """True if the match is in an earlier exception of the same process that the same package raised as the one that ended it.

    A package that could not load its library, say, fails again where it is used, with a message that no longer says why.
    """
    last, before = ended.links[-1], log.traceback_at(match.index)
    return (
        before is not None
        and match.kind is not CauseKind.SYMPTOM
        and not match.continued
        and match.index < ended.links[0].first
        and log.lines[before.first].source == log.lines[last.first].source
        and raised_by_package(last.frames)
        and last.frames[-1].package == (before.frames[-1].package if before.frames else None)
    )


def _ends_without_exception(match: Match, log: Log) -> bool:
    """True if the match may show how a run without an exception ended: by an error, or by one of its last lines."""
    if log.timeline.failed:
        return True
    if match.kind is CauseKind.SYMPTOM:
        return match.sign.lasting and (log.ends_not_finite or log.ends_at_zero)
    return log.timeline.is_last(match.index)


def _is_of_ending(match: Match, log: Log) -> bool:
    """True if the match is in an exception that ended a rank or in one of its causes, or was printed afterwards."""
    for chain in log.timeline.endings:
        if chain.contains(match.index):
            earlier = match.index < chain.links[-1].first
            return not (
                earlier and chain.handled and (_LOOKED_UP.match(log.lines[match.index].text) or _is_mistake(chain, log))
            )
        if match.index > chain.links[-1].end and not _BY_USER.match(log.lines[chain.links[-1].last].text):
            return True
    return False


def _is_mistake(chain: Chain, log: Log) -> bool:
    """True if the exception that ended the run is a mistake in the user's own code."""
    last = chain.links[-1]
    return bool(_MISTAKE.match(log.lines[last.last].text)) and not raised_by_package(last.frames)


def _is_consequence(matches: list[Match], log: Log) -> bool:
    """True if an exception that ended a rank is known as one that follows another rank's or device's failure."""
    indices = [match.index for match in matches if match.kind is CauseKind.CONSEQUENCE]
    return any(chain.contains(index) for chain in log.timeline.endings for index in indices)


def _matches(cause: Cause, log: Log) -> list[Match]:
    return [
        _match(cause, sign, log, index, match)
        for sign in cause.signs
        for index, match in _occurrences(sign.pattern, log)
        if (sign.inside is None or log.raised_inside(index, sign.inside))
        and all(holds(log, index) for holds in sign.when)
        and not _is_advice(log, index, match)
    ]


def _is_advice(log: Log, index: int, match: re.Match[str]) -> bool:
    """True for a text that says what to do if the error occurs, outside of exceptions and errors."""
    if log.roles[index] is Role.ERROR:
        return False
    return is_conditional(match.string[match.string.rfind("\n", 0, match.start()) + 1 : match.start()])


def _occurrences(pattern: re.Pattern[str], log: Log) -> Iterator[tuple[int, re.Match[str]]]:
    """Where a pattern matches outside of code: in a line, or in an exception's message that a console has wrapped."""
    if not log.haystack.may_contain(pattern):
        return
    found = set()
    for match in islice(pattern.finditer(log.text), _PER_SIGN):
        index = log.index_of(max(match.start(), match.end() - 1))  # of several lines the last, which is the error
        found.add(index)
        if log.roles[index] is not Role.CODE:
            yield index, match
    text, indices = log.wrapped_messages
    for match in islice(pattern.finditer(text), _PER_SIGN):
        index = indices[text.count("\n", 0, match.start())]
        if index not in found:
            yield index, match


def _match(cause: Cause, sign: Sign, log: Log, index: int, match: re.Match[str]) -> Match:
    role = log.roles[index]
    words = {name: word for name, word in match.groupdict().items() if word}
    kind = CauseKind.SYMPTOM if role is Role.NOTICE and not sign.notice else sign.kind
    survived = kind is not CauseKind.SYMPTOM and (
        log.timeline.continued_after(index) or (role in (Role.TEXT, Role.NOTICE) and log.timeline.trained_after(index))
    )
    return Match(cause, sign, kind, index, words, role, survived, log.timeline.is_elsewhere(index))
