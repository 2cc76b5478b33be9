"""Conditions of signs: whose code raised the exception, and what else the log mentions."""

import re
from collections.abc import Callable

from worker.diagnosis.cause import When
from worker.diagnosis.kills import killed_in
from worker.diagnosis.parsing.tracebacks import Frame, raised_by_package
from worker.diagnosis.timeline import Log

_HTTP = re.compile(
    r"urllib3|requests/|httpx|httpcore|aiohttp|huggingface_hub|http/client|urllib/request|socket\.py|ssl\.py"
)
_PID = re.compile(r"\bpid: (\d{1,9})\)|received by PID (\d{1,9})")
_BAR = re.compile(r"\d%\|")
_LOADING = re.compile(r"(?i)loading (?:\w+ )?(?:checkpoint|safetensors|weights|pipeline)|loading weights")
_PIPES = re.compile(r"multiprocess|multiprocessing|subprocess")


def _frames(log: Log, index: int) -> tuple[Frame, ...]:
    trace = log.traceback_at(index)
    return trace.frames if trace else ()


def by_package(log: Log, index: int) -> bool:
    """True if an installed package's code raised it, or if the log shows no frames."""
    frames = _frames(log, index)
    return not frames or raised_by_package(frames)


def without_frames(log: Log, index: int) -> bool:
    """True if the log shows no frames of the exception."""
    return not _frames(log, index)


def of_package(log: Log, index: int) -> bool:
    """True if the name was not imported from a file of the user's own: no path follows it, or a package's."""
    path = re.search(r"from '[\w.]+'\s*\((.+?)\)", log.following(index, 3))
    return path is None or path[1] == "unknown location" or bool(re.search(r"-packages|/lib/python\d", path[1]))


def without_exception(log: Log, _: int) -> bool:
    """True if the log shows no exception that ended the run."""
    return not log.timeline.endings


def from_outside(log: Log, index: int) -> bool:
    """True unless Lathe itself killed the process that the line names, or the only rank."""
    killed = killed_in(log.text)
    named = _PID.search(log.lines[index].text)
    return killed is None or not killed.includes(int(named[1] or named[2]) if named else None)


def while_loading(log: Log, index: int) -> bool:
    """True if another program than Lathe killed the process, and the last progress before was that of loading weights."""
    bars = [text for text in log.searched[:index] if _BAR.search(text)]
    loading = bool(bars) and bool(_LOADING.search(bars[-1])) and not log.timeline.trained_after(-1)
    return loading and from_outside(log, index)


def by_remote_server(log: Log, index: int) -> bool:
    """True if code that speaks HTTP raised it."""
    return log.raised_inside(index, _HTTP)


def between_ranks(log: Log, index: int) -> bool:
    """True unless the frames show another connection: to a server, or to a process that loads data."""
    return not (log.raised_inside(index, _HTTP) or log.raised_inside(index, _PIPES))


def within(log: Log, index: int, pattern: re.Pattern[str]) -> bool:
    """True if a frame is in a file or function that matches, or if the log shows no frames."""
    return not _frames(log, index) or log.raised_inside(index, pattern)


def at_code(log: Log, index: int, pattern: re.Pattern[str]) -> bool:
    """True if the line of code that failed, or its function's name, matches; or if the log shows no frames."""
    frames = _frames(log, index)
    return not frames or any(pattern.search(f"{frame.function} {frame.code}") for frame in frames[-2:])


def at_code_only(log: Log, index: int, pattern: re.Pattern[str]) -> bool:
    """True if the line of code that failed matches; a log without it does not."""
    return any(pattern.search(frame.code) for frame in _frames(log, index)[-1:])


def ends_in(log: Log, index: int, pattern: re.Pattern[str]) -> bool:
    """True if the file and function of the frame that raised the exception match."""
    last = _frames(log, index)[-1:]
    return any(pattern.search(f"{frame.file} {frame.function} ".replace("\\", "/")) for frame in last)


def outside(log: Log, index: int, pattern: re.Pattern[str]) -> bool:
    """True if no frame is in a file or function that matches."""
    return not log.raised_inside(index, pattern)


def mentions(log: Log, _: int, pattern: re.Pattern[str]) -> bool:
    """True if the log contains a text that matches."""
    return pattern.search(log.text) is not None


def unless(log: Log, _: int, pattern: re.Pattern[str]) -> bool:
    """True if the log contains no text that matches."""
    return pattern.search(log.text) is None


PLAIN: dict[str, When] = {
    test.__name__: test
    for test in (
        between_ranks,
        by_package,
        by_remote_server,
        from_outside,
        of_package,
        while_loading,
        without_exception,
        without_frames,
    )
}
OF_PATTERN: dict[str, Callable[..., bool]] = {
    test.__name__: test for test in (at_code, at_code_only, ends_in, mentions, outside, unless, within)
}
