"""Whether this machine is too busy to start a run: what starts then would only take longer, and slow down what runs.

A worker measures it, starts nothing meanwhile, and leaves a note in the data folder that pages and commands read.
"""

import contextlib
import logging
import os
import threading
import time
from pathlib import Path

from worker.identity import hostname
from worker.settings import get_settings

log = logging.getLogger(__name__)

# Processes that run or wait to, for each core, over the last minute. A supervisor starts that many times slower.
BUSY_LOAD, CALM_LOAD = 24.0, 12.0
# How late a sleeping thread wakes, as a share of the lease: what renews leases sleeps too.
BUSY_SHARE, CALM_SHARE = 0.1, 0.02
_LEAST_LATE_SECONDS = 1.0
_FOLDER = "overloaded"
_NOTE_SECONDS = 60.0  # an older note is that of a worker which has ended


class Overload:
    """Judges measurements; it takes less to stay overloaded than to become so."""

    def __init__(self, lease_seconds: float) -> None:
        self._lease_seconds = lease_seconds
        self.reason = ""

    def measured(self, load: float, late: float) -> str:
        """Why nothing may be started, or an empty text. `load`: of a core. `late`: seconds that a sleep took too long."""
        most_load, share = (CALM_LOAD, CALM_SHARE) if self.reason else (BUSY_LOAD, BUSY_SHARE)
        if load >= most_load:
            self.reason = f"load average of {load:.0f} per core"
        elif late >= max(share * self._lease_seconds, _LEAST_LATE_SECONDS):
            self.reason = f"a sleeping thread woke {late:.0f} s late"
        else:
            self.reason = ""
        return self.reason


class Gauge:
    """Measures this machine between the rounds of a worker and keeps its note up to date."""

    def __init__(self) -> None:
        self._overload = Overload(get_settings().lease_seconds)

    def sleep(self, event: threading.Event, seconds: float) -> None:
        """Waits for the event at most `seconds`, and measures meanwhile."""
        began = time.monotonic()  # which stands still while the machine is suspended
        woken = event.wait(seconds)
        self.take(load_per_core(), 0.0 if woken else time.monotonic() - began - seconds)

    def take(self, load: float, late: float) -> None:
        """Judges a measurement; what changes is logged."""
        before, reason = self._overload.reason, self._overload.measured(load, late)
        if reason and not before:
            log.warning("this machine is overloaded (%s): no run is started until it recovers", reason)
        if before and not reason:
            log.warning("this machine has recovered: waiting runs are started again")
        _write(reason)


def load_per_core() -> float:
    """Processes that run or wait to, for each core that this process may use, over the last minute."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return os.getloadavg()[0] / cores


def here() -> str:
    """Why this machine starts nothing at present; an empty text where it does."""
    return _read(_note(hostname()))


def everywhere() -> dict[str, str]:
    """Machines that start nothing at present, of those that share the data folder, each with the reason."""
    notes = {path.name: _read(path) for path in sorted(_folder().glob("*"))}
    return {name: reason for name, reason in notes.items() if reason}


def in_words() -> str:
    """One sentence for people whose runs wait, or an empty text."""
    told = [f"{name} ({reason})" for name, reason in everywhere().items()]
    return f"No run starts on an overloaded machine until it recovers: {', '.join(told)}." if told else ""


def _folder() -> Path:
    return get_settings().data_dir / _FOLDER


def _note(name: str) -> Path:
    return _folder() / name


def _read(path: Path) -> str:
    try:
        fresh = abs(time.time() - path.stat().st_mtime) < _NOTE_SECONDS
        return path.read_text(encoding="utf-8").strip() if fresh else ""
    except OSError:
        return ""


def _write(reason: str) -> None:
    path = _note(hostname())
    with contextlib.suppress(OSError):  # a full disk is told elsewhere
        if not reason:
            path.unlink(missing_ok=True)
            return
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_text(reason, encoding="utf-8")
