"""`python -m worker.evaluations.supervisor EVALUATION_ID ATTEMPT`: one attempt at an evaluation.

A thread does the work. The main thread renews the lease and stores the progress; it ends the work when a user stops the evaluation,
and gives it up when the lease is lost. If this process ends, its children end with it, and a worker queues the evaluation again.
"""

import logging
import os
import sys
import threading
from typing import Any

from training import redaction
from training.config.run_config import RunConfig
from training.errors import UserError
from training.evaluation.request import EvaluationRequest
from worker.evaluations.submit import folder_of
from worker.evaluations.work import State, work
from worker.machine import devices, processes, programs
from worker.runs import fetching
from worker.settings import get_settings
from worker.store import database, evaluations, runs
from worker.store.tables import Evaluation, Run, Status
from worker.store.work import EVALUATION, LeaseLost
from worker.supervision.launcher import Launch
from worker.supervision.lease import Lease, LeaseUncertain
from worker.supervision.training_process import end_left_behind, environment

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.2


class Supervisor:
    """One attempt at one evaluation."""

    def __init__(self, evaluation_id: str, attempt: int) -> None:
        self._id, self._attempt = evaluation_id, attempt
        self._settings = get_settings()
        self._lease = Lease(EVALUATION, (evaluation_id, attempt))
        self._state = State()
        self._summary: dict[str, Any] | None = None
        self._error: dict[str, Any] | None = None

    def run(self) -> int:
        """Runs the attempt to its end. Returns 0, or 1 if another supervisor may have the evaluation now."""
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

    def _load(self) -> tuple[Run, Evaluation]:
        with database.read() as session:
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
        finally:
            processes.kill_descendants()  # vLLM's, if the program that started it was killed

    def _attend(self, run: Run, item: Evaluation) -> None:
        """Stores progress until the work has ended.

        Raises:
            LeaseLost: another process has the evaluation, or could have it.
        """
        worker = threading.Thread(target=self._work, args=(run, item), name="work", daemon=True)
        worker.start()
        self._lease.guard(processes.kill_descendants)
        while worker.is_alive() and not self._lease.gave_up:
            worker.join(_LOOK_SECONDS)
            self._lease.try_once(self._beat)
        if self._lease.gave_up:
            raise LeaseLost(f"Evaluation {self._id}: the lease could not be renewed.")

    def _beat(self) -> None:
        item = self._lease.keep(**self._state.values)
        if item and item.stopping and not self._state.stopping.is_set():
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
        self._lease.until_answered(lambda: self._lease.renew(**values), is_fenced=True)
        if not self._lease.until_answered(lambda: self._end(**ended), is_fenced=True):
            raise LeaseLost(f"Evaluation {self._id} has another holder.")

    def _end(self, **ended: Any) -> bool:
        with database.write() as session:
            return evaluations.finish(session=session, evaluation_id=self._id, attempt=self._attempt, **ended)


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
