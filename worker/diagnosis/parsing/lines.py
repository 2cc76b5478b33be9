"""The lines of a log, and the role of each: error, notice, source code, or other text."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from worker.diagnosis.parsing.tracebacks import Traceback

Source = tuple[int | None, int | None]
"""A node and a rank."""


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
    def source(self) -> Source:
        """The node and the rank that printed it: lines of one source belong together."""
        return self.node, self.rank


class Role(IntEnum):
    """What a line of a log is. A cause's sign counts most in an error and never in code."""

    ERROR = 0
    TEXT = 1
    NOTICE = 2
    CODE = 3


_PRINTED = (Role.TEXT, Role.NOTICE)
NOTICE_LEVELS = frozenset({"DEBUG", "INFO", "WARN", "WARNING"})
_CODE = re.compile(
    r"\s*frame #\d+:|\s+(?:raise|return|assert|warnings\.warn|logger\.\w+|warn)\b|\s*\d+ +[│|] |│|\s*❱"
    r"|\s*(?:from [\w.]+ import \w|import [\w.]+$|except\b.*:$)"
    r"|\s{2,8}(?:File \"[^\"]+\", line \d+ in |\S{1,100} \([^\s()]{1,300}:\d+\)$)"
    r"|Thread \w+ \((?:active|idle)[^)]*\)(?!.*\"MainThread\")"
)
"""Code, and the frames of a process that py-spy or faulthandler dumped."""
_NOTICE = re.compile(
    r"\b\w*Warning\b|(?<!NCCL )\bWARN(?:ING)?\b|\bINFO\b|\bDEBUG\b|\[warn|^[WI]\d{4} "
    r"|^Token indices sequence length is longer|\bpip's dependency resolver does not currently take into account"
    r"|accepting this combination|but since the APIs are compatible"
    r"|[Ff]alling back to|^\s*warnings\.warn"
    r"|\b[Rr]etry(?:ing)? (?:in\b|\d+/\d+)|Trying to resume|thrown while requesting|external/local_(?:xla|tsl)/|\btensorflow/"
    r"|^Using the latest cached version of the |fatal: (?:not a git repository|detected dubious ownership)|git root error: "
    r"|^Exception ignored (?:in|while)\b|^Error caught was: "
    r"|^wandb: (?!ERROR)|Failed to detect the name of this notebook|^zip error: "
    r"|NCCL WARN (?:Failed to open libibverbs|NET/(?:IB|Plugin) ?: ?(?:No|Could not find))"
    r"|^(?:You are attempting to use )?Flash ?Attention [\d.]+ (?:only supports|without|with a model not)",
)
_ERROR = re.compile(
    r"(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit|Fault|Aborted|Killed)\b(?: ?\(.*?\))?(?::|$)"
    r"|(?:[a-z_]\w*\.)+[A-Z]\w*(?:Invalid|Expired|Timeout|NotFound|Conflict|Refused|Denied|Missing|Unavailable|Empty)(?:: |$)"
    r"|.*\b(?:ERROR|FATAL|CRITICAL)\b|\[E\d* |E\d{4} |terminate called|\s*what\(\):|.*: error: |.*fatal error|error: "
    r"|.*Assertion .* failed|.*NCCL WARN|.*\bKilled\b|.*oom[-_ ]kill|.*Out of memory: |.*CANCELLED AT|.*failed \(exitcode"
    r"|\s*exitcode\s*: |.*exit(?:s|ed)? with (?:return )?code|.*Segmentation fault|.*Fatal Python error|.*DUE TO "
    r"|.*\bXid\b|.*core dumped"
)

_RAISED = re.compile(r"(?:\w+\.)*\w*(?:Error|Exception)(?:\(\w+\))?(?:: |$)|\[?E\d+ ")
"""An exception, or an error of a C++ logger: the level of a program that logs another's output says nothing about it."""
_LAST_LINES = (
    3  # that the same rank may print after an exception of level INFO; after one of level WARNING or DEBUG none
)

_CONDITION = re.compile(r"\b(?:if|when|whenever|in case|unless|should|to avoid|to prevent|to fix)\b", re.I)
_SENTENCE = re.compile(r"[.;!?]\s")


def is_conditional(before: str) -> bool:
    """True if the words before an error, in the same sentence, say that it may occur and not that it did."""
    return bool(_CONDITION.search(_SENTENCE.split(before)[-1]))


def roles(lines: Sequence[Line], found: Iterable[tuple[Traceback, bool]]) -> list[Role]:
    """The role of each line; `found` are the tracebacks, each with True if only the launcher raised it."""
    given = _without_survived(lines, [_role(line) for line in lines])
    for one, of_launcher in found:
        for index in range(one.first, one.end + 1):
            if lines[index].source == lines[one.first].source:
                message = Role.TEXT if of_launcher else Role.ERROR
                given[index] = Role.CODE if index < one.last else message
    return given


def last_printed(lines: Sequence[Line]) -> dict[Source, int]:
    """For each source the index of its last line with text that is neither an error nor code."""
    return {line.source: index for index, line in enumerate(lines) if line.text.strip() and _role(line) in _PRINTED}


def _without_survived(lines: Sequence[Line], given: list[Role]) -> list[Role]:
    """The roles, with exceptions as notices that a logger printed as such and after which the same rank went on."""
    later: Counter[Source] = Counter()
    kept = list(given)
    for index in range(len(lines) - 1, -1, -1):
        line = lines[index]
        if given[index] is Role.ERROR and line.level in NOTICE_LEVELS:
            most = 0 if is_survived(line.level) else _LAST_LINES
            kept[index] = Role.NOTICE if later[line.source] > most else Role.ERROR
        later[line.source] += kept[index] in _PRINTED and bool(line.text.strip())
    return kept


def is_exception(text: str) -> bool:
    """True for the last line of a traceback."""
    return bool(_RAISED.match(text))


def is_survived(level: str) -> bool:
    """True for the levels at which a program logs an exception that it survives."""
    return level.startswith("WARN") or level == "DEBUG"


def _role(line: Line) -> Role:
    if _CODE.match(line.text):
        return Role.CODE
    if (line.level in NOTICE_LEVELS and not _RAISED.match(line.text)) or _NOTICE.search(line.text):
        return Role.NOTICE
    return Role.ERROR if line.level or _ERROR.match(line.text) else Role.TEXT
