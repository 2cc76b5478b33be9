"""`python -m worker.evaluations.supervisor EVALUATION_ID ATTEMPT`: one attempt at an evaluation."""

import os
import sys
from typing import Any

from training import redaction
from training.config.run_config import RunConfig
from training.scoring.request import EvaluationRequest
from worker.evaluations.submit import folder_of
from worker.evaluations.work import work
from worker.machine import devices, programs
from worker.settings import get_settings
from worker.store.tables import Evaluation, Run
from worker.store.work import EVALUATION
from worker.supervision.launcher import Launch
from worker.supervision.queued_work import State, Supervisor
from worker.supervision.training_process import environment


def evaluate(item: Evaluation, run: Run, state: State, mark: str) -> dict[str, Any]:
    """Does the evaluation and returns its summary, as a column.

    Raises:
        UserError: the program, a metric or the judge failed.
    """
    settings, launch = get_settings(), launched(run, item)
    request = EvaluationRequest.model_validate(item.request)
    config = RunConfig.model_validate(run.settings)
    env = environment(launch, mark, settings)
    return {"summary": work(settings.runs_dir / run.id, folder_of(item), config, request, launch, env, state)}


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
    return Supervisor(EVALUATION, (sys.argv[1], int(sys.argv[2])), evaluate).run()


if __name__ == "__main__":
    # Threads of the work may still run after a lost lease.
    sys.stdout.flush()
    os._exit(main())
