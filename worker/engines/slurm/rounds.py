"""One round of the engine `slurm`: compares the rows of runs with the jobs in squeue."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from training.config.choices import EngineName
from training.run_folder.paths import SUPERVISOR_LOG
from worker.engines.slurm import jobs
from worker.engines.slurm.cluster import Cluster, SlurmError, call, nodes
from worker.engines.slurm.jobs import CANCELLED, PENDING, Job
from worker.machine.process_identity import Identity, boot, me
from worker.settings import ROOT, get_settings
from worker.store import database, machines, waiting
from worker.store import jobs as stored
from worker.store.tables import Run, Status
from worker.store.tables.row import whole

log = logging.getLogger(__name__)

_CLOSING_SECONDS = 300.0  # after the end of its run, a supervisor packs the result and exits
_SUBMIT_SECONDS = 120.0  # a worker needs a tenth of them
_LOG_BYTES = 2000


class Round:
    """Compares all runs of the engine with the jobs of this installation."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._settings = cluster, get_settings()

    def run(self) -> list[Run]:
        """Submits, follows and cancels jobs; returns the runs that were submitted.

        Raises:
            SlurmError: Slurm does not answer; nothing is lost.
        """
        rows = _Rows.read()
        if not rows.unfinished and self._cluster.is_idle:
            return []
        known = self._cluster.jobs()
        if any(rows.do_not_need(job) for job in known.values()):
            # Another worker may have submitted a job after these rows were read, so newer ones decide.
            rows = _Rows.read()
            self._cancel_unneeded(known.values(), rows)
        submitted = []
        for run in rows.unfinished.values():
            if run.status is Status.RUNNING or run.id not in rows.startable:
                self._follow(run, known.get(run.job_id or ""))
            elif self._advance(run):
                submitted.append(run)
        return submitted

    def _advance(self, run: Run) -> bool:
        """Brings a run that may start one step on: finds its job, submits one, or ends it. True if it was submitted."""
        if stored.reserved_by(run) or run.job_id is None:
            return self._submit(run)
        job = self._cluster.job_of(run)
        if job is not None and job.failed_to_launch:
            if self._replace(run, job):
                self._cluster.cancel(job)
        elif job is not None and not job.ended:
            self._follow(run, job)
        elif job is not None and job.state == CANCELLED and not stored.cancelled_here(run):
            reason = f"Slurm job {job.id} was cancelled outside of Lathe (scancel). Resume continues from the last checkpoint."
            with database.write() as session:
                stored.end(session=session, run=run, status=Status.STOPPED, reason=reason)
        else:
            self._replace(run, job)
        return False

    def _follow(self, run: Run, job: Job | None) -> None:
        """Writes the state of the run's job, if it has changed."""
        if job is None or (run.job_id, run.id) != (job.id, job.run_id):
            return
        if stored.kept(run) | job.document() != run.job:
            with database.write() as session:
                stored.describe(session=session, run=run, job=job.document())
        if job.state == PENDING and stored.EXCLUDED in (run.job or {}):
            self._exclude(run, job)

    def _exclude(self, run: Run, job: Job) -> None:
        """Tells Slurm which nodes a job that waits must not get: a job that was requeued has the options of its submission."""
        if run.obstacle():
            return
        wanted = jobs.excluded(run.used, self._settings, _avoided())
        if wanted != (run.job or {}).get(stored.EXCLUDED):
            call(["scontrol", "update", f"JobId={job.id}", f"ExcNodeList={wanted}"])
            with database.write() as session:
                stored.describe(session=session, run=run, job=job.document() | {stored.EXCLUDED: wanted})

    def _replace(self, run: Run, job: Job | None) -> bool:
        """Lets the next round submit another job, or fails the run if its jobs end before its supervisor starts.

        False if the run has started or another worker's round was faster.
        """
        before = run.job or {}
        unused = run.attempt < int(before.get("attempt", 0))
        tries = int(before.get("tries", 0)) + 1 if unused else 0
        if tries < self._settings.max_attempts:
            with database.write() as session:
                return stored.forget(session=session, run_id=run.id, job_id=str(run.job_id), job={"tries": tries})
        state = "gone" if job is None else "held, its launch failed" if job.failed_to_launch else job.state.lower()
        reason = f"Slurm job {run.job_id} is {state}: {tries} jobs ended before Lathe's supervisor could start in them."
        fix = f"Check that the nodes have this folder and Python: {ROOT}. The job's output is below."
        return self._fail(run, reason, fix, self._output(run))

    def _fail(self, run: Run, reason: str, fix: str, output: str = "") -> bool:
        error = {"message": reason, "fix": fix, "phase": "", "rank": None, "traceback": "", "log_tail": output}
        with database.write() as session:
            return stored.end(session=session, run=run, status=Status.FAILED, reason=reason, error=error)

    def _submit(self, run: Run) -> bool:
        """Submits a job for the run, unless one is found that was submitted before a crash. True if the run has a job now."""
        owner, attempt = stored.reserved_by(run), run.attempt + 1
        if owner is not None:
            if not self._is_over(run, owner):
                return False
            current = self._cluster.jobs(now=True).values()
            lost = [job for job in current if (job.run_id, job.attempt, job.ended) == (run.id, attempt, False)]
            with database.write() as session:
                if lost:
                    stored.record(session=session, run=run, job_id=lost[0].id, job=lost[0].document())
                    return True
                stored.unreserve(session=session, run_id=run.id, owner=owner)
        with database.write() as session:
            reserved = stored.reserve(session=session, run=run, owner=_owner())
        return reserved is not None and self._sbatch(reserved, attempt)

    def _sbatch(self, run: Run, attempt: int) -> bool:
        config, avoided = run.used, _avoided()
        argv, script = jobs.submission(config, run.id, attempt, self._settings, boot(), avoided)
        (self._settings.runs_dir / run.id).mkdir(mode=0o700, parents=True, exist_ok=True)
        own: dict[str, Any] = {"tries": (run.job or {}).get("tries", 0)}
        if config.num_machines > 1:
            own[stored.EXCLUDED] = jobs.excluded(config, self._settings, avoided)
        try:
            job_id = call(argv, text=script).strip().split(";")[0]
        except SlurmError as error:
            self._refused(run, error)
            return False
        finally:
            self._cluster.forget()
        document = Job(job_id, PENDING, run.id, attempt, num_nodes=config.num_machines).document() | own
        with database.write() as session:
            stored.record(session=session, run=run, job_id=job_id, job=document)
        log.info("run %s, attempt %d: Slurm job %s", run.id, attempt, job_id)
        return True

    def _refused(self, run: Run, error: SlurmError) -> None:
        """Fails a run that Slurm refuses; if Slurm only did not answer, the next round looks for the job."""
        if error.unreachable:
            return  # the mark stays, since Slurm may have taken the job
        self._fail(run, f"Slurm refused the job: {error}", jobs.fix_of(str(error)))
        with database.write() as session:
            stored.unreserve(session=session, run_id=run.id, owner=_owner())

    def _cancel_unneeded(self, known: Iterable[Job], rows: "_Rows") -> None:
        """Cancels jobs of runs that were stopped, deleted, held or given another job; a supervisor at work ends by itself."""
        for job in filter(rows.do_not_need, known):
            run = rows.unfinished.get(job.run_id)
            if job.state != PENDING and not self._overdue(job):
                continue
            if run is not None and run.job_id == job.id:  # held; forgotten first, since a user's scancel stops the run
                with database.write() as session:
                    if not stored.forget(session=session, run_id=run.id, job_id=job.id):
                        continue  # it has started
            log.info("job %s of run %s is not needed", job.id, job.run_id)
            self._cluster.cancel(job)

    def _is_over(self, run: Run, owner: str) -> bool:
        """True if the process that was submitting a job has ended, or another machine's has taken too long."""
        identity = Identity.parse(owner)
        if identity is None or identity == me():  # rounds of this process follow each other
            return True
        if identity.provably_dead(only_machine=not self._settings.database_url):
            return True
        with database.read() as session:
            return stored.reserved_for(session=session, run=run) > _SUBMIT_SECONDS

    def _overdue(self, job: Job) -> bool:
        """True if the run of a job that still runs ended a while ago, or was deleted."""
        with database.read() as session:
            run = session.get(Run, job.run_id)
            ended = run.finished_at if run is not None else 0.0
            return ended is not None and database.now(session=session) - ended > _CLOSING_SECONDS

    def _output(self, run: Run) -> str:
        try:
            text = (self._settings.runs_dir / run.id / SUPERVISOR_LOG).read_bytes()[-_LOG_BYTES:]
        except OSError:
            return ""
        return text.decode("utf-8", "replace")


@dataclass(frozen=True)
class _Rows:
    """The runs of this engine that have not ended, by id, and the ids of those that may start now."""

    unfinished: dict[str, Run]
    startable: set[str]

    @classmethod
    def read(cls) -> "_Rows":
        with database.read() as session:
            runs = [run for run in stored.waiting_or_running(session=session) if run.engine is EngineName.SLURM]
            startable = {run.id for run in whole(waiting.startable(session=session)) if run.engine is EngineName.SLURM}
        return cls({run.id: run for run in runs}, startable)

    def do_not_need(self, job: Job) -> bool:
        """True for a job that has not ended, of a run that has, or that must not start its run."""
        run = self.unfinished.get(job.run_id)
        if job.ended or run is None:
            return not job.ended
        if run.status is Status.RUNNING:
            return run.job_id != job.id
        if run.job_id is None or stored.reserved_by(run):
            return False  # it may be the one that is being recorded
        return run.job_id != job.id or run.id not in self.startable


def _avoided() -> set[str]:
    """The nodes of the cluster that are put aside. sbatch refuses names that it does not know, such as those of a fleet."""
    with database.read() as session:
        hosts = machines.cordoned(session=session)
    return hosts & nodes() if hosts else hosts


def _owner() -> str:
    return str(me())
