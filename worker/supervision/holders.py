"""What becomes of the processes that hold work: those that a worker starts, and those that are lost."""

import contextlib
import logging
import os
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from enum import Enum
from pathlib import Path
from typing import Any, Generic, TypeVar

from sqlmodel import Session

from training.run_folder.paths import SUPERVISOR_LOG
from worker.machine import processes
from worker.machine.process_identity import Identity, me
from worker.settings import ROOT, get_settings
from worker.store import database
from worker.store.tables import Run
from worker.store.tables.held import Held
from worker.store.work import Key, Kind, LeaseLost
from worker.supervision.lease import Lease, steady

T = TypeVar("T", bound=Held)

log = logging.getLogger(__name__)

ended = threading.Event()
"""Set when a process that this worker started has ended: devices may be free, or its work lost."""

_START_LEASES = 12  # a supervisor that needs more lease periods to start counts as hanging
_RENEWALS = 3
FLAG = "--standby"


class Holder(Enum):
    """What is known of the process that holds some work."""

    GONE = "it has certainly ended: the work may be requeued at once"
    STARTING = "it is still starting: its lease is renewed for it"
    ALIVE = "it is alive, even if its lease has expired"
    UNKNOWN = "only the lease says whether it is alive"


def holder_of(row: Held, *, attended: bool) -> Holder:
    """What this machine knows of the row's holder. `attended`: if it is this process, it still cares for the work."""
    identity = Identity.parse(row.holder)
    if identity is None:
        return Holder.UNKNOWN
    if identity == me():
        return Holder.STARTING if attended else Holder.GONE
    # The embedded database is used by this machine only.
    if identity.provably_dead(only_machine=not get_settings().database_url):
        return Holder.GONE
    return Holder.ALIVE if identity.here and identity.alive else Holder.UNKNOWN


def host_of(row: Held) -> str:
    """The machine of the row's holder."""
    return (row.holder or "").partition(":")[0]


def end_holder(row: Held) -> None:
    """Kills the holder, which hangs, and its descendants, if it is another process of this machine."""
    identity = Identity.parse(row.holder)
    if identity is not None and identity != me() and identity.here and identity.alive:
        processes.kill_tree(identity.pid)


def lost(
    kind: Kind[T], poll: Callable[[T], Holder], part: str = "", belongs: Callable[[T], bool] = lambda _: True
) -> list[T]:
    """The work without a holder: the lease has expired, or `poll` knows that the holder is gone.

    Of a `part` of the work, which has a name, only what `belongs` to it.
    """
    with database.read() as session:
        rows = [(row, expired) for row, expired in kind.rows(session) if belongs(row)]
    held = [(row, poll(row), expired) for row, expired in rows]
    silent = _silences[kind, part].of(
        (*kind.key_of(row), row.expires_at)
        for row, holder, expired in held
        if expired and holder is not Holder.STARTING
    )
    return [row for row, holder, _ in held if holder is Holder.GONE or kind.key_of(row) in silent]


def recover(
    kind: Kind[T],
    row: T,
    poll: Callable[[T], Holder],
    end: Callable[[T], object],
    close: Callable[[Session, T, Holder], bool],
) -> bool:
    """Takes lost work from its holder, which then cannot renew; `end`s what is left of it, and `close`s or requeues the attempt.

    False if it has another holder by now, has ended, or was renewed in time.
    """
    holder, mine = poll(row), str(me())
    expired, seconds = holder is not Holder.GONE, get_settings().lease_seconds
    with database.write() as session:
        if kind.seize(session, row, holder=mine, lease_seconds=seconds, expired=expired) is None:
            return False
    end(row)
    with contextlib.suppress(LeaseLost), database.write() as session:
        current = kind.renew(session, kind.key_of(row), holder=mine, lease_seconds=seconds)  # locks the row
        return close(session, current, holder)
    return False


class Silence:
    """Measures with a monotonic clock for how long expired leases were not renewed.

    If the database's clock is set forward, all leases expire at once; live holders then renew them within a moment.
    """

    def __init__(self) -> None:
        self._since: dict[Key, float] = {}

    def of(self, expired: Iterable[Key]) -> set[Key]:
        """The keys of those that missed several renewals. Each of `expired` is a key and the end of its lease."""
        now, seconds = steady(), _RENEWALS * get_settings().renew_seconds
        self._since = {lease: self._since.get(lease, now) for lease in expired}
        return {lease[:-1] for lease, since in self._since.items() if now - since >= seconds}


_silences: defaultdict[tuple[Kind[Any], str], Silence] = defaultdict(Silence)


class Supervisors(Generic[T]):
    """The supervisors of one kind of work that this worker has started."""

    def __init__(self, kind: Kind[T]) -> None:
        self._kind = kind
        self.lock = threading.RLock()
        """Hold it from the claim to the start: until then, `poll` cannot tell claimed work from lost."""
        self.started: dict[Key, subprocess.Popen[bytes]] = {}

    def start(
        self,
        row: T,
        command: list[str],
        output: Path,
        *,
        ready: Callable[[], subprocess.Popen[bytes] | None] = lambda: None,
    ) -> None:
        """Starts the supervisor of claimed work, or takes one that is `ready`; if that fails, the work counts as lost.

        A thread holds the work until the supervisor adopts it, and waits for the supervisor's end.
        """
        key = self._kind.key_of(row)
        title = self._kind.title(key)
        try:
            output.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            started = ready() or processes.start_detached(command, output=output, cwd=ROOT)
        except OSError:
            log.exception("%s its supervisor cannot be started", title)
            return
        log.info("%s supervisor %d starts", title, started.pid)
        with self.lock:
            self.started[key] = started
        threading.Thread(target=self._attend, args=(key, started), name=f"{title} supervisor", daemon=True).start()

    def poll(self, row: T) -> Holder:
        """What this machine knows of the row's holder."""
        with self.lock:
            started = self.started.get(self._kind.key_of(row))
        return holder_of(row, attended=started is not None and started.poll() is None)

    def _attend(self, key: Key, started: subprocess.Popen[bytes]) -> None:
        self._hold(key, started)
        code = started.wait()
        log.info("%s supervisor ended with exit code %d", self._kind.title(key), code)
        with self.lock:
            del self.started[key]
        ended.set()

    def _hold(self, key: Key, started: subprocess.Popen[bytes]) -> None:
        """Renews the lease while the supervisor starts: on a busy machine that may take longer than a lease period."""
        lease, settings = Lease(self._kind, key), get_settings()
        deadline = steady() + _START_LEASES * settings.lease_seconds
        with contextlib.suppress(LeaseLost):  # the supervisor holds it
            while steady() < deadline:
                processes.wait_for_end(started, settings.renew_seconds)
                if started.poll() is not None:
                    return
                lease.try_once(lease.renew)
            log.error("%s supervisor %d does not start; killing it", self._kind.title(key), started.pid)
            processes.kill_tree(started.pid)


class Standby:
    """Keeps at most one waiting process. It ends when this process ends."""

    def __init__(self) -> None:
        self._waiting: subprocess.Popen[bytes] | None = None

    def prepare(self, command: list[str]) -> None:
        """Starts `command`, which ends with `--standby`, unless a process is waiting already."""
        if self._waiting is None or _ended(self._waiting):
            pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
            self._waiting = subprocess.Popen(
                command, stdin=pipe, stdout=nothing, stderr=nothing, cwd=ROOT, start_new_session=True
            )

    def take(self, run: Run) -> subprocess.Popen[bytes] | None:
        """Hands the run to the waiting process and returns that; None if there is none."""
        taken, self._waiting = self._waiting, None
        if taken is None or _ended(taken) or taken.stdin is None:
            return None
        try:
            with taken.stdin as stdin:
                stdin.write(f"{run.id} {run.attempt}\n".encode())
        except BrokenPipeError:  # it has just ended
            return None
        return taken


def _ended(waiting: subprocess.Popen[bytes]) -> bool:
    if waiting.poll() is None:
        return False
    if waiting.stdin:
        waiting.stdin.close()
    return True


def assignment(runs_dir: Path) -> list[str]:
    """In the waiting process: reads run and attempt from standard input and redirects output to the run's log; [] for none."""
    words = sys.stdin.readline().split()
    if words:
        log = os.open(runs_dir / words[0] / SUPERVISOR_LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for new, number in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(new, number)
    return words
