"""Conditions of signs: whose code raised the exception, and what else the log mentions."""

import re
from collections.abc import Callable, Sequence

from worker.diagnosis.cause import When
from worker.diagnosis.log import Log
from worker.diagnosis.parsing.frames import Frame, raised_by_package


def _frames(log: Log, place: int) -> tuple[Frame, ...]:
    trace = log.traceback_at(place)
    return trace.frames if trace else ()


def by_package(log: Log, place: int) -> bool:
    """True if an installed package's code raised it, or if the log shows no frames."""
    frames = _frames(log, place)
    return not frames or raised_by_package(frames)


def of_package(log: Log, place: int) -> bool:
    """True if the name was not imported from a file of the user's own: no path follows it, or a package's."""
    path = re.search(r"from '[\w.]+'\s*\((.+?)\)", log.following(place, 3))
    return path is None or path[1] == "unknown location" or bool(re.search(r"-packages|/lib/python\d", path[1]))


def within(code: str) -> When:
    """True if a frame is in a file or function that matches, or if the log shows no frames."""
    pattern = re.compile(code)
    return lambda log, place: not _frames(log, place) or log.raised_inside(place, pattern)


def at_code(code: str) -> When:
    """True if the line of code that failed, or its function's name, matches; or if the log shows no frames."""
    pattern = re.compile(code)

    def matches(log: Log, place: int) -> bool:
        frames = _frames(log, place)
        return not frames or any(pattern.search(f"{one.function} {one.code}") for one in frames[-2:])

    return matches


def at_code_only(code: str) -> When:
    """True if the line of code that failed matches; a log without it does not."""
    pattern = re.compile(code)
    return lambda log, place: any(pattern.search(one.code) for one in _frames(log, place)[-1:])


def ends_in(code: str) -> When:
    """True if the file and function of the frame that raised the exception match."""
    pattern = re.compile(code)

    def matches(log: Log, place: int) -> bool:
        last = _frames(log, place)[-1:]
        return any(pattern.search(f"{one.file} {one.function} ".replace("\\", "/")) for one in last)

    return matches


def outside(code: str) -> When:
    """True if no frame is in a file or function that matches."""
    pattern = re.compile(code)
    return lambda log, place: not log.raised_inside(place, pattern)


def without_exception(log: Log, _: int) -> bool:
    """True if the log shows no exception that ended the run."""
    return not log.timeline.endings


def mentions(text: str) -> When:
    """True if the log contains a text that matches."""
    pattern = re.compile(text)
    return lambda log, _: pattern.search(log.text) is not None


def unless(text: str) -> When:
    """True if the log contains no text that matches."""
    pattern = re.compile(text)
    return lambda log, _: pattern.search(log.text) is None


def all_of(given: Sequence[When]) -> When | None:
    """True if all conditions hold; None without any."""
    if len(given) < 2:
        return next(iter(given), None)
    return lambda log, place: all(one(log, place) for one in given)


_HTTP = re.compile(
    r"urllib3|requests/|httpx|httpcore|aiohttp|huggingface_hub|http/client|urllib/request|socket\.py|ssl\.py"
)
_PIPES = re.compile(r"multiprocess|multiprocessing|subprocess")


def by_remote_server(log: Log, place: int) -> bool:
    """True if code that speaks HTTP raised it."""
    return log.raised_inside(place, _HTTP)


def between_ranks(log: Log, place: int) -> bool:
    """True unless the frames show another connection: to a server, or to a process that loads data."""
    return not (log.raised_inside(place, _HTTP) or log.raised_inside(place, _PIPES))


PLAIN: dict[str, When] = {
    test.__name__: test for test in (between_ranks, by_package, by_remote_server, of_package, without_exception)
}
OF_PATTERN: dict[str, Callable[[str], When]] = {
    test.__name__: test for test in (at_code, at_code_only, ends_in, mentions, outside, unless, within)
}
