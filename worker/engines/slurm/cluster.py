"""Slurm's client commands, each with a time limit, and what they say: the jobs of this installation, and the partitions."""

import getpass
import os
import subprocess
import threading
from collections.abc import Sequence

from worker.engines.slurm import jobs
from worker.engines.slurm.jobs import Job
from worker.settings import get_settings
from worker.store.tables import Run
from worker.store.tables.reports import Pool
from worker.supervision.lease import steady

_FRESH_SECONDS = 4.0
_FAILED_SECONDS = 10.0
_OVER = ("invalid job id", "already completing or completed")
"""What scancel prints about a job that has ended."""
SECONDS = 20.0
_NOT_FOR_JOBS = ("LATHE_TOKEN", "LATHE_SMTP_URL", "LATHE_JUDGE_KEY", "LATHE_DEVICES", "CUDA_VISIBLE_DEVICES")
"""Secrets that no job needs (Slurm stores the environment of a job), and the devices of this machine."""


class SlurmError(RuntimeError):
    """A command of Slurm failed; the message is its error output. `unreachable`: it may succeed later."""

    def __init__(self, message: str, *, unreachable: bool) -> None:
        super().__init__(message)
        self.unreachable = unreachable


# Also limits on the number of submitted jobs (AssocMaxSubmitJobLimit, QOSMaxSubmitJobPerUserLimit).
_LATER = (
    "unable to contact",
    "socket timed out",
    "connection refused",
    "communication connection failure",
    "try again",
)


def call(argv: Sequence[str], *, text: str = "", seconds: float = SECONDS) -> str:
    """What the command prints; `text` is its standard input.

    Raises:
        SlurmError: it failed, is not installed, or took longer than `seconds`.
    """
    try:
        done = subprocess.run(
            list(argv),
            check=False,
            input=text,
            env=_environment(),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
        )
    except FileNotFoundError:
        message = f"{argv[0]} is not installed. Install Slurm's client commands (Debian: slurm-client)."
        raise SlurmError(message, unreachable=False) from None
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{argv[0]} did not answer within {seconds:.0f} s.", unreachable=True) from None
    if done.returncode:
        message = " ".join(done.stderr.split()) or f"{argv[0]} ended with exit code {done.returncode}."
        raise SlurmError(message, unreachable=any(sign in message.lower() for sign in _LATER))
    return done.stdout


def _environment() -> dict[str, str]:
    """This process's environment in English, without what must not reach a job: sbatch passes it on."""
    kept = {name: value for name, value in os.environ.items() if name not in _NOT_FOR_JOBS}
    return kept | {"SLURM_TIME_FORMAT": "%s", "LC_ALL": "C.UTF-8"}


class Cluster:
    """The jobs of this installation, from one squeue for all runs. After a failure it is not asked for a while."""

    def __init__(self) -> None:
        self._failure: SlurmError | None = None
        self._failed = 0.0
        self._jobs: dict[str, Job] = {}
        self._asked = 0.0
        self._lock = threading.Lock()

    def jobs(self, *, now: bool = False) -> dict[str, Job]:
        """The jobs by id: those that wait or run, and those that have ended lately. With `now` as of this call.

        Raises:
            SlurmError: Slurm does not answer.
        """
        with self._lock:
            if self._failure and steady() - self._failed < _FAILED_SECONDS:
                raise self._failure
            if now or not self._asked or steady() - self._asked >= _FRESH_SECONDS:
                began = steady()
                try:
                    argv = [
                        "squeue",
                        f"--user={getpass.getuser()}",
                        "--states=all",
                        "--noheader",
                        f"--format={jobs.FORMAT}",
                    ]
                    listed = jobs.parse(call(argv), get_settings())
                except SlurmError as error:
                    self._failure, self._failed = error, steady()
                    raise
                self._jobs, self._asked, self._failure = {job.id: job for job in listed}, began, None
            return self._jobs

    def job_of(self, run: Run) -> Job | None:
        """The job whose id the run has, as Slurm knows it; None if it has forgotten it, which it does minutes after its end.

        A controller that was killed may give an id again that it gave just before: then it is another run's.
        """
        for now in (False, True):  # a job that another worker has just submitted is not among those known
            job = self.jobs(now=now).get(run.job_id or "")
            if job is not None and job.run_id == run.id:
                return job
        return None

    @property
    def is_idle(self) -> bool:
        """True if there were no waiting or running jobs at the last look."""
        return self._asked > 0 and all(job.ended for job in self._jobs.values())

    def cancel(self, job: Job) -> None:
        """Cancels the job if its name is still this one: a controller that was killed may have given its ID to another run's job.

        Raises:
            SlurmError: Slurm does not answer, or refuses.
        """
        try:
            call(["scancel", f"--name={jobs.name(get_settings(), job.run_id, job.attempt)}", job.id])
        except SlurmError as error:
            if not any(words in str(error).lower() for words in _OVER):
                raise
        finally:
            self.forget()

    def forget(self) -> None:
        """The next `jobs` asks again: a job was submitted or cancelled."""
        with self._lock:
            self._asked = 0.0


def pools() -> list[Pool]:
    """The partitions, with the number of nodes in each state. Raises SlurmError if Slurm does not answer."""
    found: dict[str, Pool] = {}
    for line in call(["sinfo", "--noheader", "--format=%P|%D|%T|%l|%G"]).splitlines():
        name, nodes, state, limit, gres = (line.strip().split("|") + [""] * 5)[:5]
        plain, count = name.rstrip("*"), int(nodes)
        known = found.get(plain) or Pool(plain, 0, {}, 0, limit, name.endswith("*"))
        states = known.states | {state: known.states.get(state, 0) + count}
        gpus = known.gpus + count * _gpus(gres)
        found[plain] = Pool(plain, known.machines + count, states, gpus, limit, known.is_default)
    return list(found.values())


def nodes() -> set[str]:
    """The names of all nodes. Raises SlurmError if Slurm does not answer."""
    return set(call(["sinfo", "--noheader", "--Node", "--format=%N"]).split())


def _gpus(gres: str) -> int:
    """The GPUs of a node in sinfo's words: `gpu:h100:8(S:0-1),shard:4`."""
    counts = [part.split("(")[0].rsplit(":", 1)[-1] for part in gres.split(",") if part.startswith("gpu")]
    return sum(int(count) for count in counts if count.isdigit())
