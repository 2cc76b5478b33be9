"""Work on ended runs that waits for a worker (evaluations, builds): its progress, one attempt at it, and what is lost.

A thread does the work. The main thread renews the lease and stores the progress; it ends the work when a user stops it, and gives
it up when the lease is lost. If this process ends, its children end with it, and a worker queues the work again.
"""

import logging
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any, Generic, TypeVar

from sqlmodel import Session

from training.errors import UserError
from training.run_folder.paths import SUPERVISOR_LOG
from worker.machine import processes
from worker.machine.process_identity import hostname, me
from worker.machine.programs import ProgramKilled
from worker.results import fetching
from worker.settings import get_settings
from worker.store import database, runs
from worker.store.database import UNREACHABLE
from worker.store.tables import Run, Status
from worker.store.tables.queued import QueuedWork
from worker.store.work import Key, LeaseLost, QueuedKind
from worker.supervision import holders
from worker.supervision.holders import Holder, Supervisors
from worker.supervision.lease import Lease, LeaseUncertain
from worker.supervision.training_process import end_left_behind

Row = TypeVar("Row", bound=QueuedWork)

_LOOK_SECONDS = 0.2

log = logging.getLogger(__name__)


@dataclass
class WorkState:
    """The progress of the work, which its supervisor stores, with `more` columns; setting `stopping` ends the work."""

    phase: str = "starting"
    done: int = 0
    total: int = 0
    more: dict[str, Any] = field(default_factory=dict)
    stopping: Event = field(default_factory=Event)

    def progress(self, phase: str, done: int = 0, total: int = 0) -> None:
        self.phase, self.done, self.total = phase, done, total

    @property
    def values(self) -> dict[str, Any]:
        """The columns of the row."""
        return {"phase": self.phase, "done": self.done, "total": self.total} | self.more


class WorkQueue(Generic[Row]):
    """One kind of such work on this worker. `module` is the program that supervises it, `folder` returns where its log goes."""

    def __init__(self, kind: QueuedKind[Row], module: str, folder: Callable[[Row], Path]) -> None:
        self._kind, self._module, self._folder = kind, module, folder
        self.supervisors = Supervisors(kind)

    def supervise(self, row: Row) -> None:
        """Starts the supervisor of what was claimed."""
        command = [sys.executable, "-m", self._module, *map(str, self._kind.key_of(row))]
        self.supervisors.start(row, command, self._folder(row) / SUPERVISOR_LOG)

    def recover(self) -> list[Row]:
        """Requeues the work whose supervisor is gone; after too many attempts it fails. Returns it."""
        poll = self.supervisors.poll
        lost = holders.lost(self._kind, poll)
        return [row for row in lost if holders.recover(self._kind, row, poll, self._end_left_behind, self._close(row))]

    def _end_left_behind(self, row: Row) -> None:
        if holders.host_of(row) == hostname():
            holders.end_holder(row)
            end_left_behind(_mark(self._kind, row))

    def _close(self, lost: Row) -> Callable[[Session, Row, Holder], bool]:
        reason = f"Its supervisor on {holders.host_of(lost)} ended unexpectedly."

        def close(session: Session, row: Row, _: Holder) -> bool:
            if row.attempt < get_settings().max_attempts:
                log.warning("%s is lost; it is queued again", self._kind.title(self._kind.key_of(row)))
                return self._kind.requeue(session, row, reason)
            message, fix = f"{reason} It was tried {row.attempt} times.", f"Its folder has {SUPERVISOR_LOG}."
            error = {"field": self._kind.noun, "value": _name(self._kind, row), "message": message, "fix": fix}
            return self._kind.finish(session, self._kind.key_of(row), Status.FAILED, error=error)

        return close


class WorkSupervisor(Generic[Row]):
    """One attempt at some work. `work` takes the row, its run, the state to keep and what marks its processes, and returns further
    columns of the ended row; a UserError that it raises is stored as the row's error.
    """

    def __init__(
        self, kind: QueuedKind[Row], key: Key, work: Callable[[Row, Run, WorkState, str], dict[str, Any]]
    ) -> None:
        self._kind, self._key, self._do = kind, key, work
        self._lease = Lease(kind, key)
        self._state = WorkState()
        self._ended: dict[str, Any] = {}

    def run(self) -> int:
        """Runs the attempt to its end. Returns 0, or 1 if another supervisor may have the work now."""
        processes.set_child_subreaper()
        try:
            if self._lease.until_answered(self._lease.adopt, is_fenced=True):
                self._attend(*self._lease.until_answered(self._load))
                self._finish()
        except (LeaseLost, LeaseUncertain) as error:
            log.error("%s", error)
            processes.kill_descendants()
            return 1
        return 0

    def _load(self) -> tuple[Row, Run]:
        row = self._lease.renew()
        with database.read() as session:
            return row, runs.get(session=session, run_id=row.run_id)

    def _work(self, row: Row, run: Run) -> None:
        kills = processes.memory_kills()
        try:
            end_left_behind(_mark(self._kind, row))
            fetching.fetch(run)
            values = self._do(row, run, self._state, _mark(self._kind, row))
            self._ended = {"status": Status.FINISHED, **values}
        except UserError as error:
            if isinstance(error.__cause__, ProgramKilled):
                self._after_kill(row, error, for_memory=processes.memory_kills() != kills)
            else:
                self._fail(vars(error.problem))
        except UNREACHABLE as error:
            self._again(row, "The database was unreachable.", self._unexpected(row, error))
        except Exception as error:
            self._fail(self._unexpected(row, error))
        finally:
            processes.kill_descendants()  # vLLM's, if the program that started it was killed

    def _unexpected(self, row: Row, error: Exception) -> dict[str, Any]:
        log.exception("%s failed", self._kind.title(self._key))
        message, fix = f"{type(error).__name__}: {error}", "The worker's log has the traceback."
        return {"field": self._kind.noun, "value": _name(self._kind, row), "message": message, "fix": fix}

    def _after_kill(self, row: Row, error: UserError, *, for_memory: bool) -> None:
        """Queues the work again, as a run whose process is killed from outside, unless the kernel did it to free memory."""
        if for_memory:
            message = "The machine is out of memory (host RAM), and the system killed the program."
            self._fail(vars(error.problem) | {"message": message, "fix": "End other programs, then try again."})
        else:
            self._again(row, "Its program was killed by SIGKILL.", vars(error.problem))

    def _again(self, row: Row, reason: str, problem: dict[str, Any]) -> None:
        """Queues the work again, while attempts are left."""
        if row.attempt < get_settings().max_attempts:
            self._ended = {"status": Status.QUEUED, "reason": reason}
        else:
            self._fail(problem)

    def _fail(self, problem: dict[str, Any]) -> None:
        self._ended = {"status": Status.FAILED, "error": problem | {"value": str(problem.get("value") or "")}}

    def _attend(self, row: Row, run: Run) -> None:
        """Stores progress until the work has ended."""
        worker = threading.Thread(target=self._work, args=(row, run), name="work", daemon=True)
        worker.start()
        with self._lease.guarded(lambda _: processes.kill_descendants()):
            while worker.is_alive() and not self._lease.gave_up:
                worker.join(_LOOK_SECONDS)
                self._lease.try_once(self._beat)
        if self._lease.gave_up:
            raise LeaseLost(f"{self._kind.title(self._key)}: {self._lease.gave_up}")

    def _beat(self) -> None:
        row = self._lease.keep(**self._state.values)
        if row and row.stopping and not self._state.stopping.is_set():
            self._state.stopping.set()
            processes.kill_descendants()

    def _finish(self) -> None:
        ended = {"status": Status.STOPPED} if self._state.stopping.is_set() else self._ended
        values = self._state.values
        self._lease.until_answered(lambda: self._lease.renew(**values), is_fenced=True)
        if not self._lease.until_answered(lambda: self._end(**ended), is_fenced=True):
            raise LeaseLost(f"{self._kind.title(self._key)} has another holder.")

    def _end(self, *, status: Status, **ended: Any) -> bool:
        with database.write() as session:
            if status is Status.QUEUED:
                row = self._kind.check(session, self._key, holder=str(me()))
                return self._kind.requeue(session, row, ended["reason"])
            return self._kind.finish(session, self._key, status, **ended)


def _name(kind: QueuedKind[Row], row: Row) -> str:
    """What names the work, whatever the attempt."""
    return "-".join(map(str, kind.key_of(row)[:-1]))


def _mark(kind: QueuedKind[Row], row: Row) -> str:
    return f"{kind.noun}-{_name(kind, row)}"
