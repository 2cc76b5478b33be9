"""`python -m worker.engines.job_side.supervisor RUN_ID MACHINE`: the script of a Slurm job; the supervisor of its run.

It claims the run, starts the ranks by srun, and does everything else as the supervisor of a worker does. Slurm ends all processes
of the job with it.
"""

import logging
import os
import signal
import sys
from dataclasses import replace

from training import redaction
from training.config.run_config import RunConfig
from training.errors import UserError
from worker.engines.job_side import claiming, training_step
from worker.engines.job_side.training_step import TrainingStep
from worker.engines.slurm.commands import SlurmError, call
from worker.store import database, runs
from worker.store.tables import Run, Status
from worker.supervision import outcome
from worker.supervision.outcome import Verdict
from worker.supervision.report_reader import AttemptProgress, Reports
from worker.supervision.supervisor import Launcher, Supervisor

log = logging.getLogger(__name__)


class JobSupervisor(Supervisor):
    """The supervisor of a run in a job of Slurm."""

    def __init__(self, run: Run, launch: Launcher) -> None:
        super().__init__(run.id, run.attempt, launch=launch, start=TrainingStep, outside_stop=True)
        self.near_limit = False

    def _on_terminate(self, *arguments: object) -> None:
        """Slurm ends the job (SIGTERM), or it nears its time limit (SIGUSR1): save, and continue later."""
        self.near_limit = self.near_limit or signal.SIGUSR1 in arguments
        super()._on_terminate(*arguments)

    def _train(self, run: Run, config: RunConfig, reports: Reports) -> Verdict:
        return self.without_a_step(super()._train(run, config, reports), reports.seen)

    def without_a_step(self, verdict: Verdict, seen: AttemptProgress) -> Verdict:
        """Counts an attempt as failed that nears its limit before its first step: another one would come no further."""
        if not self.near_limit or seen.trained or verdict.status is not Status.QUEUED or verdict.retry:
            return verdict
        message = "The time limit of the Slurm job came before the first step."
        grace = self._settings.slurm_grace_seconds
        fix = f"Give a longer time in slurm_options, or lower LATHE_SLURM_GRACE_SECONDS ({grace})."
        error, goes_on = outcome.error_of(seen, message, fix), outcome.goes_on(seen)
        return replace(verdict, status=Status.FAILED, reason=message, error=error, retry=True, goes_on=goes_on)


def main(arguments: list[str], *, launch: Launcher = training_step.launch) -> int:
    """Supervises the run's next attempt. Returns 0 unless the job cannot be used at all."""
    run_id, submitted_on = arguments
    job_id = os.environ["SLURM_JOB_ID"]
    redaction.start_logging()
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda *_: sys.exit(0))  # nothing is claimed yet
    try:
        claiming.check_database(submitted_on)
    except UserError as error:
        print(error, error.fix, file=sys.stderr, flush=True)
        return 1
    run = claiming.claim(run_id, job_id, claiming.job_nodes())
    if run is None:
        return 0
    supervisor = JobSupervisor(run, launch)
    code = supervisor.run()
    if supervisor.near_limit and _waits(run_id, job_id):
        _queue_again(job_id)
    return code


def _waits(run_id: str, job_id: str) -> bool:
    with database.read() as session:
        run = runs.get(session=session, run_id=run_id)
    return run.status is Status.QUEUED and not run.held and run.job_id == job_id


def _queue_again(job_id: str) -> None:
    """Puts this job back into Slurm's queue, where it keeps its age; if that fails, a worker submits another one."""
    try:
        call(["scontrol", "requeue", job_id])
    except SlurmError as error:
        log.warning("job %s cannot be queued again: %s", job_id, error)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
