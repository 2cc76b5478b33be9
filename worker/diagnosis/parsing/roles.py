"""The role of each line of a log: error, notice, source code, or other text."""

import re
from collections.abc import Iterable, Sequence
from enum import IntEnum

from worker.diagnosis.parsing.tracebacks import Traceback


class Role(IntEnum):
    """What a line of a log is. A cause's sign counts most in an error and never in code."""

    ERROR = 0
    TEXT = 1
    NOTICE = 2
    CODE = 3


_CODE = re.compile(
    r"\s*frame #\d+:|\s+(?:raise|return|assert|warnings\.warn|logger\.\w+|warn)\b|\s*\d+ +[│|] |│|\s*❱"
    r"|\s*(?:from [\w.]+ import \w|import [\w.]+$|except\b.*:$)"
)
_NOTICE = re.compile(
    r"\b\w*Warning\b|(?<!NCCL )\bWARN(?:ING)?\b|\bINFO\b|\bDEBUG\b|\[warn|^[WI]\d{4} "
    r"|accepting this combination|but since the APIs are compatible"
    r"|[Ff]alling back to|^\s*warnings\.warn"
    r"|\b[Rr]etry(?:ing)? (?:in\b|\d+/\d+)|Trying to resume|thrown while requesting|external/local_(?:xla|tsl)/|\btensorflow/"
    r"|^Using the latest cached version of the "
    r"|^(?:You are attempting to use )?Flash ?Attention [\d.]+ (?:only supports|without|with a model not)",
)
_ERROR = re.compile(
    r"(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit|Fault|Aborted|Killed)\b(?: ?\(.*?\))?(?::|$)"
    r"|.*\b(?:ERROR|FATAL|CRITICAL)\b|\[E\d* |E\d{4} |terminate called|\s*what\(\):|.*: error: |.*fatal error|error: "
    r"|.*Assertion .* failed|.*NCCL WARN|.*\bKilled\b|.*oom[-_ ]kill|.*Out of memory: |.*CANCELLED AT|.*failed \(exitcode"
    r"|\s*exitcode\s*: |.*exit(?:s|ed)? with (?:return )?code|.*Segmentation fault|.*Fatal Python error|.*DUE TO "
    r"|.*\bXid\b|.*core dumped"
)


def roles(texts: Sequence[str], sources: Sequence[object], found: Iterable[tuple[Traceback, bool]]) -> list[Role]:
    """The role of each line. `sources`: who printed it; `found`: the tracebacks, each with True if only the launcher raised it."""
    given = [_role(text) for text in texts]
    for one, of_launcher in found:
        for place in range(one.first, one.end + 1):
            if sources[place] == sources[one.first]:
                message = Role.TEXT if of_launcher else Role.ERROR
                given[place] = Role.CODE if place < one.last else message
    return given


def _role(text: str) -> Role:
    if _CODE.match(text):
        return Role.CODE
    if _NOTICE.search(text):
        return Role.NOTICE
    return Role.ERROR if _ERROR.match(text) else Role.TEXT
