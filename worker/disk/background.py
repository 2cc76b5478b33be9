"""Measures and frees disk space in threads of this process, so that no request waits for folders to be read."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from training.errors import Conflict
from worker.choices import Freeable
from worker.disk import freeing, usage
from worker.disk.freeing import MayChange, Progress
from worker.disk.usage import Usage
from worker.settings import get_settings

log = logging.getLogger(__name__)

FRESH_SECONDS = 60.0
_SHARE = 20  # a measurement takes at most this share of the time: one of a minute is repeated after 20 minutes


class AlreadyFreeing(Conflict):
    """Disk space is being freed already."""


@dataclass(frozen=True)
class Measured:
    """The latest figures, None before the first; and how far a running measurement is, as (done, total)."""

    usage: Usage | None = None
    progress: tuple[int, int] | None = None
    problem: str = ""


class Disk:
    """The disk use of one installation, measured when somebody looks, and the latest work of freeing."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._measured, self._tried_at = Measured(), 0.0
        self._measuring: threading.Thread | None = None
        self._freeing: threading.Thread | None = None
        self.freed: Progress | None = None

    def measured(self, *, again: bool = False) -> Measured:
        """The latest figures; starts a measurement if they are old, or with `again`."""
        with self._lock:
            if (again or self._is_old()) and not _runs(self._measuring):
                self._measured, self._tried_at = replace(self._measured, progress=(0, 0)), time.time()
                self._measuring = _started("disk use", self._measure)
            return self._measured

    def free(self, kinds: tuple[Freeable, ...], may_change: MayChange, who: str) -> Progress:
        """Starts to free what the caller `who` may change, and returns its progress.

        Raises:
            AlreadyFreeing: it is being freed already.
        """
        with self._lock:
            if _runs(self._freeing):
                message = "is already being freed."
                raise AlreadyFreeing("kinds", ", ".join(kinds), message, "Wait until it has ended.")
            progress = self.freed = Progress(kinds)
            self._freeing = _started("freeing", lambda: self._free(progress, may_change, who))
        return progress

    def wait(self) -> Measured:
        """Waits until nothing is being freed or measured, and returns the figures."""
        for thread in (self._freeing, self._measuring):
            if thread is not None:
                thread.join()
        return self._measured

    def _is_old(self) -> bool:
        known = self._measured.usage
        if known is None:
            return self._tried_at == 0.0 or time.time() - self._tried_at > FRESH_SECONDS
        latest = max(known.measured_at, self._tried_at)
        return time.time() - latest > max(FRESH_SECONDS, _SHARE * known.seconds)

    def _measure(self) -> None:
        try:
            now = Measured(usage.measure(self._progress))
        except Exception as error:  # of a thread: shown on the page
            log.exception("the disk use could not be measured")
            now = replace(self._measured, progress=None, problem=str(error))
        with self._lock:
            self._measured = now

    def _progress(self, done: int, total: int) -> None:
        self._measured = replace(self._measured, progress=(done, total))

    def _free(self, progress: Progress, may_change: MayChange, who: str) -> None:
        try:
            freeing.free(progress, may_change, who)
        except Exception as error:  # of a thread: shown on the page
            log.exception("disk space could not be freed")
            progress.failed(str(error))
        self._measure()
        progress.ended_at = time.time()


_disks: dict[Path, Disk] = {}


def disk() -> Disk:
    """The disk use of this process's installation."""
    return _disks.setdefault(get_settings().data_dir, Disk())


def _started(name: str, work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    return thread


def _runs(thread: threading.Thread | None) -> bool:
    return thread is not None and thread.is_alive()
