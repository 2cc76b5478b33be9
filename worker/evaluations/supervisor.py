"""`python -m worker.evaluations.supervisor EVALUATION_ID ATTEMPT`: one attempt at an evaluation.

A thread does the work. The main thread renews the lease and stores the progress; it ends the work when a user stops the evaluation,
and gives it up when the lease is lost. If this process ends, its children end with it, and a worker queues the evaluation again.
"""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from training import redaction
from training.config.run_config import RunConfig
from training.errors import UserError
from training.evaluation.request import EvaluationRequest
from worker.evaluations.submit import folder_of
from worker.evaluations.work import State, work
from worker.machine import devices, processes, programs
from worker.machine.process_identity import me
from worker.runs import fetching
from worker.settings import get_settings
from worker.store import database, evaluations, runs
from worker.store.claims import LeaseLost
from worker.store.database import UNREACHABLE
from worker.store.tables import Evaluation, Run, Status
from worker.supervision.launcher import Launch
from worker.supervision.lease import steady
from worker.supervision.training_process import end_left_behind, environment

log = logging.getLogger(__name__)

_STORE_SECONDS = 1.0
_MARGIN = 0.1  # of the lease, as in worker/supervision/lease.py


class Supervisor:
    """One attempt at one evaluation."""

    def __init__(self, evaluation_id: str, attempt: int) -> None:
        self._id, self._attempt, self._owner = evaluation_id, attempt, str(me())
        self._settings = get_settings()
        self._state = State()
        self._summary: dict[str, Any] | None = None
        self._error: dict[str, Any] | None = None

    def run(self) -> int:
        """Runs the attempt to its end. Returns 0, or 1 if another supervisor may have the evaluation now."""
        processes.set_child_subreaper()
        found = self._adopted()
        if found is None:
            return 0
        worker = threading.Thread(target=self._work, args=found, name="work", daemon=True)
        worker.start()
        try:
            self._attend(worker)
            self._finish()
        except LeaseLost as error:
            log.error("%s", error)
            processes.kill_descendants()
            return 1
        return 0

    def _adopted(self) -> tuple[Run, Evaluation] | None:
        with database.write() as session:
            if not evaluations.adopt(session=session, **self._held):
                return None
            item = evaluations.get(session=session, evaluation_id=self._id)
            return runs.get(session=session, run_id=item.run_id), item

    def _work(self, run: Run, item: Evaluation) -> None:
        try:
            mark = f"evaluation-{item.id}"
            end_left_behind(mark)
            run_dir = self._settings.runs_dir / run.id
            fetching.fetch(run)
            launch = launched(run, item)
            request = EvaluationRequest.model_validate(item.request)
            config = RunConfig.model_validate(run.config | run.stepped_down)
            env = environment(launch, mark, self._settings)
            self._summary = work(run_dir, folder_of(item), config, request, launch, env, self._state)
        except UserError as error:
            self._error = vars(error.problem)
        except Exception as error:
            log.exception("the evaluation failed")
            message, fix = f"{type(error).__name__}: {error}", "The worker's log has the traceback."
            self._error = {"field": "evaluation", "value": self._id, "message": message, "fix": fix}

    def _attend(self, worker: threading.Thread) -> None:
        """Stores progress until the work has ended.

        Raises:
            LeaseLost: another process has the evaluation, or could have it.
        """
        renewed, stored, shown = steady(), 0.0, None
        while worker.is_alive():
            worker.join(0.2)
            values, now = self._state.values, steady()
            due = now - renewed >= self._settings.renew_seconds
            if (values == shown and not due) or now - stored < _STORE_SECONDS:
                continue
            stored = now
            try:
                self._store(values)
                renewed, shown = now, values
            except UNREACHABLE as error:
                log.warning("the database is unreachable: %s", error)
                if now - renewed > self._settings.lease_seconds * (1 - _MARGIN):
                    raise LeaseLost(f"Evaluation {self._id}: the lease could not be renewed.") from error

    def _store(self, values: dict[str, Any]) -> None:
        with database.write() as session:
            stopping = evaluations.renew(session=session, **self._held, **values)
        if stopping and not self._state.stopping.is_set():
            self._state.stopping.set()
            processes.kill_descendants()

    def _finish(self) -> None:
        if self._state.stopping.is_set():
            ended: dict[str, Any] = {"status": Status.STOPPED}
        elif self._error:
            ended = {"status": Status.FAILED, "error": self._error | {"value": str(self._error.get("value") or "")}}
        else:
            ended = {"status": Status.FINISHED, "summary": self._summary}
        values = self._state.values
        self._until_answered(lambda: self._store(values))
        if not self._until_answered(lambda: self._end(**ended)):
            raise LeaseLost(f"Evaluation {self._id} has another holder.")

    def _end(self, **ended: Any) -> bool:
        with database.write() as session:
            return evaluations.finish(session=session, evaluation_id=self._id, attempt=self._attempt, **ended)

    def _until_answered(self, action: Callable[[], Any]) -> Any:
        """Retries while the database is unreachable; every action checks who holds the evaluation."""
        while True:
            try:
                return action()
            except UNREACHABLE as error:
                log.warning("the database is unreachable: %s", error)
                time.sleep(_STORE_SECONDS)

    @property
    def _held(self) -> dict[str, Any]:
        seconds = self._settings.lease_seconds
        return {"evaluation_id": self._id, "attempt": self._attempt, "owner": self._owner, "lease_seconds": seconds}


def launched(run: Run, item: Evaluation) -> Launch:
    """The program that answers the rows, on the evaluation's device."""
    run_dir = get_settings().runs_dir / run.id
    argv = [sys.executable, "-m", programs.EVALUATE, str(run_dir.absolute()), item.id]
    env = devices.variables([item.device]) | {
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TOKENIZERS_PARALLELISM": "true",
        "OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)))),
    }
    return Launch(argv, env)


def main() -> int:
    """Supervises the evaluation in the arguments."""
    redaction.start_logging()
    return Supervisor(sys.argv[1], int(sys.argv[2])).run()


if __name__ == "__main__":
    # Threads of the work may still run after a lost lease.
    sys.stdout.flush()
    os._exit(main())
