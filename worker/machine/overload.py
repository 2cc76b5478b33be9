"""Detects that this machine is too busy to start another run, or that none of its devices can be used.

A worker measures the load, starts nothing while it is too high, and writes a file in the data folder that pages and commands read.
"""

import contextlib
import logging
import os
import threading
import time
from pathlib import Path

from training.run_folder import full_disk
from worker.machine import devices
from worker.machine.process_identity import hostname
from worker.settings import SettingsError, get_settings

log = logging.getLogger(__name__)

# Load average per core over the last minute. A supervisor starts that many times slower.
BUSY_LOAD, CALM_LOAD = 24.0, 12.0
# How late a sleeping thread wakes, as a share of the lease: the threads that renew leases sleep too.
BUSY_SHARE, CALM_SHARE = 0.1, 0.02
_LEAST_LATE_SECONDS = 1.0
_FOLDER = "overloaded"
_NOTE_SECONDS = 60.0  # an older file belongs to a worker that has ended


class Overload:
    """Judges measurements; the limit to stay overloaded is lower than the one to become so."""

    def __init__(self, lease_seconds: float) -> None:
        self._lease_seconds = lease_seconds
        self.reason = ""

    def measured(self, load: float, late: float) -> str:
        """The reason not to start runs, or "". `load`: per core. `late`: seconds by which a sleep was too long."""
        most_load, share = (CALM_LOAD, CALM_SHARE) if self.reason else (BUSY_LOAD, BUSY_SHARE)
        if load >= most_load:
            self.reason = f"load average of {load:.0f} per core"
        elif late >= max(share * self._lease_seconds, _LEAST_LATE_SECONDS):
            self.reason = f"a sleeping thread woke {late:.0f} s late"
        else:
            self.reason = ""
        return self.reason


class Gauge:
    """Measures this machine between the rounds of a worker and updates its file.

    `trial` is the reason not to start runs that a trial of the devices found, or empty.
    """

    def __init__(self) -> None:
        self._overload = Overload(get_settings().lease_seconds)
        self._reason = ""
        self.trial = ""

    def sleep(self, event: threading.Event, seconds: float) -> None:
        """Waits for the event for at most `seconds`, and measures meanwhile."""
        began = time.monotonic()  # does not count time in suspend
        woken = event.wait(seconds)
        self.take(load_per_core(), 0.0 if woken else time.monotonic() - began - seconds)

    def take(self, load: float, late: float) -> None:
        """Judges a measurement and logs changes."""
        before, self._reason = self._reason, devices_problem() or self.trial or self._overload.measured(load, late)
        if self._reason and not before:
            log.warning("this machine starts no runs: %s", self._reason)
        if before and not self._reason:
            log.warning("this machine has recovered: waiting runs are started again")
        _write(self._reason)


def devices_problem() -> str:
    """Why no device of this machine can be used, or ""."""
    try:
        return devices.problem()
    except SettingsError as error:
        return str(error)


def load_per_core() -> float:
    """Load average of the last minute per core that this process may use."""
    return os.getloadavg()[0] / devices.cores()


def here() -> str:
    """The reason why this machine starts no runs now, or ""."""
    read_only = full_disk.read_only(get_settings().data_dir)  # which has no place for a note
    return read_only.message.removesuffix(".") if read_only else _read(_note(hostname()))


def everywhere() -> dict[str, str]:
    """The machines with this data folder that start no runs now, each with the reason."""
    notes = {path.name: _read(path) for path in sorted(_folder().glob("*"))} | {hostname(): here()}
    return {name: reason for name, reason in notes.items() if reason}


def in_words() -> str:
    """A sentence for users with waiting runs, or ""."""
    machines = [f"{name} ({reason})" for name, reason in everywhere().items()]
    return f"Machines that start no runs at present: {', '.join(machines)}." if machines else ""


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
    with contextlib.suppress(OSError):  # a full disk is reported elsewhere
        if not reason:
            path.unlink(missing_ok=True)
            return
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_text(reason, encoding="utf-8")
