"""`python -m worker.engines.job_side.supervisor RUN_ID MACHINE`: the script of a Slurm job; the supervisor of its run.

It claims the run, starts the ranks by srun, and does everything else as the supervisor of a worker does. Slurm ends all processes
of the job with it.
"""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from sqlalchemy import make_url

from training import redaction
from training.config.run_config import RunConfig
from training.errors import UserError
from worker.engines.job_side.node import KILL, KILL_RANKS, STOP
from worker.engines.slurm import jobs
from worker.engines.slurm.cluster import SlurmError, call
from worker.machine import address, processes
from worker.machine.devices import JOB
from worker.machine.process_identity import boot, hostname, me
from worker.settings import ROOT, get_settings
from worker.store import claims, database, runs
from worker.store.database import UNREACHABLE
from worker.store.runs import RunNotFound
from worker.store.tables import Run, Status
from worker.supervision import outcome
from worker.supervision.launcher import Launch
from worker.supervision.outcome import Verdict
from worker.supervision.report_reader import AttemptProgress, Reports
from worker.supervision.supervisor import Launcher, Supervisor
from worker.supervision.training_process import TrainingProcess

log = logging.getLogger(__name__)

_RETRY_SECONDS = 2.0
_MOST_LEASES = 4  # the run of a lost node is requeued after one lease
_KILL_SECONDS = 10.0


NODE_PROGRAM = "worker.engines.job_side.node"


def launch_step(
    config: RunConfig, run_dir: Path, _devices: list[str], _cpu_count: int, *, program: str = NODE_PROGRAM
) -> Launch:
    """The command srun that starts the ranks of every node of this job. `program` is the module that it runs on each."""
    settings = get_settings()
    nodes, kind = str(config.num_machines), "gpu" if jobs.gres(config, settings) else jobs.ON_CPU
    argv = ["srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "--kill-on-bad-exit=1"]
    argv += ["--wait=0"]  # ranks of other nodes end in order long before rank 0 has verified and pushed the result
    # The tasks share the whole nodes, and the launcher divides them among its ranks.
    argv += ["--cpu-bind=none", "--mpi=none", f"--chdir={run_dir}"]
    python = sys.executable
    if settings.slurm_container:
        mounts = ",".join(f"{folder}:{folder}" for folder in (settings.data_dir, ROOT))
        argv += [f"--container-image={settings.slurm_container}", f"--container-mounts={mounts}"]
        python = "python3"
    argv += [python, "-m", program, str(run_dir), str(address.free_port()), kind]
    return Launch(argv, {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))})


class TrainingStep(TrainingProcess):
    """The ranks on all nodes. Requests reach the process on each node through srun's standard input, without the controller."""

    _several_machines = True

    def __init__(self, argv: list[str], run_dir: Path, env: Mapping[str, str]) -> None:
        super().__init__(argv, run_dir, env, stdin=subprocess.PIPE)
        self._requested: set[str] = set()

    def exit_code(self) -> int | None:
        """As srun reports it: 128 + N for signal N becomes -N. Slurm ends steps so (requeue, a lost node): the run is retried."""
        code = super().exit_code()
        return 128 - code if code is not None and code > 128 else code

    def request_stop(self, ranks: Iterable[int], why: str) -> None:  # noqa: ARG002
        self._request(STOP, signal.SIGTERM, why)

    def kill_ranks(self, ranks: Iterable[int], why: str) -> None:  # noqa: ARG002
        self._remember(frozenset(), why)
        self._request(KILL_RANKS, signal.SIGKILL, why)

    def gone(self, ranks: Mapping[int, int]) -> list[int]:  # noqa: ARG002
        """None: torchrun on the rank's node and `--kill-on-bad-exit` end the others, whose processes cannot be seen from here."""
        return []

    def clear(self, why: str) -> None:
        """Kills the launchers and ranks of all nodes, then srun. Slurm ends what is left with the job."""
        if self.exit_code() is None:
            self._request(KILL, signal.SIGKILL, why)
            processes.wait_for_end(self._launcher, _KILL_SECONDS)
        processes.kill_descendants()

    def _request(self, request: str, number: signal.Signals, why: str) -> None:
        """Sends a request once to the process on each node."""
        stdin = self._launcher.stdin
        if stdin is not None and request not in self._requested:
            self._requested.add(request)
            self._write(number, None, why)
            with contextlib.suppress(BrokenPipeError):  # srun has ended
                stdin.write(f"{request}\n".encode())
                stdin.flush()


def check_database(submitted_on: str) -> None:
    """Refuses a SQLite database on another machine than the one that submitted the job.

    SQLite's write-ahead log needs shared memory, which no shared folder has: the database would be damaged.

    Raises:
        UserError: the database is SQLite, and this is another machine.
    """
    url = make_url(get_settings().sqlalchemy_url)
    if url.get_backend_name() == "sqlite" and submitted_on != boot():
        raise UserError(
            "LATHE_DATABASE_URL",
            str(url),
            f"is SQLite, which several machines cannot share; this job runs on {hostname()}.",
            "Set it to a PostgreSQL URL that every node reaches.",
        )


def claim_run(run_id: str, job_id: str, nodes: list[str]) -> Run | None:
    """Claims the run for this job; None if it is not for this job: it has ended, is held, or has another job.

    After a restart of the job (a node was lost, or a preemption) the run may still be held by what was lost; waits for it.
    """
    seconds = get_settings().lease_seconds
    deadline = time.monotonic() + max(_MOST_LEASES * seconds, 600)
    while time.monotonic() < deadline:
        try:
            run = _try(run_id, job_id, nodes, seconds)
        except UNREACHABLE as error:
            log.warning("the database is unreachable: %s", error)
        except RunNotFound:
            return None
        else:
            if run.holder == str(me()):
                return run
            if run.status is not Status.RUNNING or run.job_id != job_id:
                log.info("run %s is %s, with job %s: nothing to do for job %s", run_id, run.status, run.job_id, job_id)
                return None
        time.sleep(_RETRY_SECONDS)
    return None


def _try(run_id: str, job_id: str, nodes: list[str], seconds: float) -> Run:
    """The run after one try to claim it; it is ours if we hold its lease."""
    devices = [f"{node}{JOB}{job_id}" for node in nodes]
    with database.write() as session:
        claimed = claims.claim(
            session=session, run_id=run_id, owner=str(me()), devices=devices, lease_seconds=seconds, job_id=job_id
        )
        return claimed or runs.get(session=session, run_id=run_id)


def job_nodes() -> list[str]:
    """The nodes of this job, the first one first."""
    listed = os.environ.get("SLURM_JOB_NODELIST", "")
    try:
        return call(["scontrol", "show", "hostnames", listed]).split()
    except SlurmError:  # works without the controller; names are for display only
        return [hostname()]


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


def main(arguments: list[str], *, launch: Launcher = launch_step) -> int:
    """Supervises the run's next attempt. Returns 0 unless the job cannot be used at all."""
    run_id, submitted_on = arguments
    job_id = os.environ["SLURM_JOB_ID"]
    redaction.start_logging()
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda *_: sys.exit(0))  # nothing is claimed yet
    try:
        check_database(submitted_on)
    except UserError as error:
        print(error, error.fix, file=sys.stderr, flush=True)
        return 1
    run = claim_run(run_id, job_id, job_nodes())
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
