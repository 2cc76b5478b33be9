"""The engine `slurm`: each waiting run is a job, whose script is the supervisor of the run.

A job is to Slurm what a message is to a worker: it only wakes somebody who then claims the run in the database. A lost, doubled or
late job changes nothing. In every round the engine compares the rows with squeue, submits jobs for runs that have none, and cancels
jobs that no run needs.
"""

import logging
import threading
import time

from sqlmodel import Session

from training.config.choices import EngineName
from worker.engines.slurm import cluster, jobs
from worker.engines.slurm.cluster import Cluster, SlurmError
from worker.engines.slurm.jobs import Job
from worker.engines.slurm.rounds import Round
from worker.store import database, machines
from worker.store import jobs as stored
from worker.store.tables import Attempt, Run, Status
from worker.store.tables.reports import Capacity
from worker.supervision.holders import Holder

log = logging.getLogger(__name__)

_CLOCK_SECONDS = 5.0  # by which the clocks of Slurm and of the database may differ


class SlurmEngine:
    """Runs as jobs of a Slurm cluster."""

    name = EngineName.SLURM
    asks_elsewhere = True

    def __init__(self) -> None:
        self._cluster = Cluster()
        self._lock = threading.Lock()  # one round at a time

    def submit_waiting(self) -> list[Run]:
        try:
            with self._lock:
                return Round(self._cluster).run()
        except SlurmError as error:
            log.warning("Slurm does not answer: %s", error)
            return []

    def poll(self, run: Run) -> Holder:
        """Only a job that Slurm has ended is gone: the processes of a lost node may still be alive, until their lease expires."""
        try:
            job = self._cluster.job_of(run)
        except SlurmError:
            return Holder.UNKNOWN
        gone = job is None or (job.ended and job.state != "NODE_FAIL")
        return Holder.GONE if gone else Holder.UNKNOWN

    def cancel(self, run: Run) -> None:
        """Cancels the run's job, unless nothing of the attempt is left in it: it has ended, waits, or has started again.

        No other job is submitted before its processes are gone.
        """
        try:
            job = self._cluster.job_of(run)
            if job is None or job.ended or job.state == jobs.PENDING or _started_again(run, job):
                return
            with database.write() as session:
                stored.cancelling(session=session, run=run)
            self._cluster.cancel(job)
        except SlurmError as error:  # its supervisor ends by itself: it can no longer renew its lease
            log.warning("the job of run %s cannot be cancelled: %s", run.id, error)
        finally:
            self._cluster.forget()

    def prepare(self) -> None:
        """Nothing: the processes of a job start on its nodes."""

    def reason_to_wait(self, *, session: Session, run: Run) -> str:
        if problem := machines.engine_problem(session=session, name=self.name):
            return f"Waits for Slurm, which does not answer: {problem}"
        job_id = stored.submitted_id(run)
        return jobs.waiting_sentence(job_id, run.job, time.time()) if job_id and run.job else ""

    def capacity(self) -> Capacity:
        with database.read() as session:
            mine = [run for run in stored.waiting_or_running(session=session) if run.engine is self.name]
        waiting = sum(run.status is Status.QUEUED for run in mine)
        try:
            return Capacity(self.name, cluster.pools(), waiting, len(mine) - waiting)
        except SlurmError as error:
            return Capacity(self.name, [], waiting, len(mine) - waiting, str(error))


def _started_again(run: Run, job: Job) -> bool:
    """True if Slurm started the job again after the attempt had begun."""
    with database.read() as session:
        attempt = session.get(Attempt, (run.id, run.attempt))
    return attempt is not None and job.starts_at is not None and job.starts_at > attempt.started_at + _CLOCK_SECONDS
