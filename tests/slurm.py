"""An installation whose runs are jobs of a real Slurm cluster on this machine, for tests."""

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from environment import use
from paths import ROOT
from patience import eventually

from benchmarks import slurm_cluster
from benchmarks.chaos import job
from benchmarks.chaos.findings import losses
from benchmarks.chaos.ranks import DOUBLED_FILE, loss_of, states
from benchmarks.slurm_cluster import SlurmCluster
from training.config.run_config import RunConfig
from worker.engines.slurm import jobs
from worker.queue import reaper
from worker.settings import get_settings
from worker.store import database as db
from worker.store import history, runs
from worker.store.tables import Run, Status

NODES = 2
QUIET_SECONDS = 240.0  # Slurm lets a requeued job wait for two minutes


def pending(run: Run) -> bool:
    """True if a job of the run waits; it may be another one than before, if Slurm could not launch that."""
    return run.status is Status.QUEUED and (run.job or {}).get("state") == "PENDING"


class Installation:
    """Rounds of a worker, called by the test, and the runs that they submit."""

    def __init__(self, cluster: SlurmCluster, home: Path) -> None:
        self.cluster, self.home = cluster, home

    def queue(self, config: RunConfig) -> str:
        with db.write() as session:
            return runs.create(session=session, config=config, dataset_id=None).id

    def light(self, steps: int, **settings: Any) -> str:
        """Queues a run of light ranks (benchmarks/chaos/kinds.py reads the kind in its name), one on each node."""
        values = {
            "model": "m",
            "data": "d",
            "name": "light-1",
            "strategy": "ddp",
            "num_processes": 2,
            "num_machines": 2,
        }
        return self.queue(
            RunConfig.model_validate(values | {"max_steps": steps, "save_steps": 5, "seed": 7} | settings)
        )

    def get(self, run_id: str) -> Run:
        with db.read() as session:
            return runs.get(session=session, run_id=run_id)

    def until(self, run_id: str, condition: Callable[[Run], Any]) -> Run:
        """Lets rounds pass until the run meets the condition."""
        return self._rounds_until(run_id, condition, lambda run: run.status.ended)

    def until_end(self, run_id: str) -> Run:
        """Lets rounds pass until the run has ended."""
        return self._rounds_until(run_id, lambda run: run.status.ended)

    def _rounds_until(
        self, run_id: str, condition: Callable[[Run], Any], too_late: Callable[[Run], bool] = lambda run: False
    ) -> Run:
        def met() -> Run | None:
            run = self.get(run_id)
            if condition(run):
                return run
            assert not too_late(run), self._state(run)
            self._round()
            return None

        try:
            run = eventually(met, quiet=QUIET_SECONDS, every=0.1)
        except AssertionError as error:
            error.add_note(self._state(self.get(run_id)))
            raise
        assert run
        return run

    def _state(self, run: Run) -> str:
        return f"{run.status} {run.phase} {run.step} {run.job} {run.error}\n{self.told(run.id)}"

    def wait(self, condition: Callable[[], Any]) -> None:
        """Waits without rounds."""
        eventually(condition, quiet=QUIET_SECONDS, every=0.2)

    def _round(self) -> None:
        self.cluster.resume_drained()
        reaper.run_round()

    def trains(self, run_id: str, step: int, attempt: int) -> Run:
        return self.until(run_id, lambda run: run.attempt >= attempt and run.step >= step and bool(run.job_id))

    def continues(self, run_id: str, step: int, attempt: int) -> Run:
        """As `trains`, of a run that was requeued: its job starts soon, not after Slurm's two minutes.

        Not at once: a node refuses a job that starts in the second in which it ended ("Job credential revoked").
        """
        set_to_start: set[tuple[str | None, int]] = set()

        def condition(run: Run) -> bool:
            job = (run.job_id, run.attempt)
            if pending(run) and job not in set_to_start:
                with contextlib.suppress(subprocess.CalledProcessError):  # it is starting, or still ending on a node
                    self.cluster.call("scontrol", "update", f"JobId={run.job_id}", "StartTime=now+3seconds")
                    set_to_start.add(job)
            return run.attempt >= attempt and run.step >= step

        return self.until(run_id, condition)

    def told(self, run_id: str) -> str:
        with db.read() as session:
            return "\n".join(event.message for event in history.events(session=session, run_id=run_id))

    def finished_undisturbed(self, run_id: str) -> Run:
        """Waits for the end; no step was lost or trained twice, and nothing is left in the queue."""
        run = self.until_end(run_id)
        assert run.status is Status.FINISHED, (run.error, self.told(run_id))
        config = RunConfig.model_validate(run.config)
        expected = {step: loss_of(state) for step, state in states(config.seed, 1, config.max_steps or 0)}
        assert losses(run_id) == expected
        assert not (get_settings().runs_dir / run_id / DOUBLED_FILE).exists()
        self.nothing_left()
        return run

    def nothing_left(self) -> None:
        def left() -> str:
            self.cluster.resume_drained()
            return self.cluster.call("squeue", "--noheader")

        self.wait(lambda: not left())


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    """A cluster of two nodes; the test is skipped where Slurm is not installed."""
    if lacking := slurm_cluster.missing():
        pytest.skip(f"needs Slurm (Debian: slurmctld, slurmd, slurm-client): {', '.join(lacking)} missing")
    folder = Path(tempfile.mkdtemp(prefix="lathe-slurm-"))
    with SlurmCluster(folder, NODES) as running:
        yield running
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def slurm(cluster: SlurmCluster, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installation]:
    """An installation with the engine slurm only; its runs train with light ranks or, by name, for real."""
    seconds = {"LEASE_SECONDS": "600", "RENEW_SECONDS": "1", "MAX_ATTEMPTS": "6", "SLURM_GRACE_SECONDS": "20"}
    use(monkeypatch, DATA_DIR=str(home), ENGINES="slurm", SLURM_GRES="cpu", **seconds)
    for name, value in (cluster.environment | {"PYTHONPATH": str(ROOT)}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(jobs, "supervisor_program", job.PROGRAM)
    created = Installation(cluster, home)
    yield created
    cluster.cancel_all()
