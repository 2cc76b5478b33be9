"""A node of a real Slurm cluster that fails twice: the run continues on the others."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm import Installation, pending, slurm

from benchmarks import slurm_cluster
from benchmarks.slurm_cluster import SlurmCluster
from training.config.choices import EngineName
from worker.engines.registry import engine
from worker.queue.reaper import report_engine
from worker.store import database as db
from worker.store import jobs as stored
from worker.store import machines, runs
from worker.store.tables import Run, Status

__all__ = ["slurm"]
pytestmark = [pytest.mark.slow, pytest.mark.nightly]


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    """A cluster of three nodes that are found lost after 10 seconds; the test is skipped where Slurm is not installed."""
    if lacking := slurm_cluster.missing():
        pytest.skip(f"needs Slurm (Debian: slurmctld, slurmd, slurm-client): {', '.join(lacking)} missing")
    folder = Path(tempfile.mkdtemp(prefix="lathe-slurm-"))
    with SlurmCluster(folder, 3, node_timeout=10) as running:
        yield running
    shutil.rmtree(folder, ignore_errors=True)


def nodes(run: Run) -> set[str]:
    return {device.partition("/")[0] for device in run.devices}


def job(slurm: Installation, run: Run) -> str:
    return slurm.cluster.call("scontrol", "show", "job", "-o", str(run.job_id))


def test_a_node_that_fails_twice_is_avoided_until_it_is_used_again(slurm: Installation) -> None:
    slurm.cluster.call("scontrol", "update", "NodeName=n3", "State=DRAIN", f"Reason={slurm_cluster.KEPT}")
    run_id = slurm.light(3000)
    run = slurm.trains(run_id, 5, 1)
    for attempt in (1, 2):
        if attempt == 2:
            run = slurm.continues(run_id, run.step + 5, 2)
            slurm.cluster.call("scontrol", "update", "NodeName=n3", "State=RESUME")
            report_engine(engine(EngineName.SLURM))  # as a worker does every ten seconds
        assert nodes(run) == {"n1", "n2"}
        slurm.cluster.lose("n2")
        run = slurm.until(run_id, lambda run: run.status is Status.QUEUED)
        slurm.cluster.start_node("n2")
    told = slurm.told(run_id)
    assert "Machine n2 ended 2 attempts" in told and "It is put aside" in told, told[-2000:]
    slurm.until(run_id, lambda run: pending(run) and "ExcNodeList=n2 " in job(slurm, run))
    assert nodes(slurm.continues(run_id, run.step + 5, 3)) == {"n1", "n3"}

    waiting = slurm.light(5, slurm_options="cpus-per-task=2")  # more than n1 and n3 have free
    slurm.until(waiting, lambda run: run.job and run.job.get(stored.EXCLUDED) == "n2")
    with db.write() as session:
        machines.uncordon(session=session, host="n2")
    slurm.until(waiting, lambda run: run.job and run.job.get(stored.EXCLUDED) == "")
    with db.write() as session:
        runs.request_stop(session=session, run_id=run_id)
    assert slurm.until_end(run_id).status is Status.STOPPED
    slurm.finished_undisturbed(waiting)
