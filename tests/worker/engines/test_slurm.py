"""Runs as jobs of a real Slurm cluster: nothing is lost, doubled or left over whatever is killed."""

import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import psutil
import pytest
from slurm import Installation, cluster, pending, slurm
from sqlalchemy import update
from sqlmodel import col
from supervised import expire

from benchmarks.slurm_cluster import SlurmCluster
from training.config.run_config import RunConfig
from training.run_folder.paths import RUN_VARIABLE
from worker.engines.registry import engine
from worker.engines.slurm import jobs
from worker.engines.slurm.cluster import Cluster, call
from worker.engines.slurm.jobs import Job
from worker.engines.slurm.rounds import Round
from worker.machine import processes
from worker.machine.process_identity import Identity, boot
from worker.queue import reaper
from worker.settings import get_settings
from worker.store import database as db
from worker.store import jobs as stored
from worker.store import runs
from worker.store.tables import Run, Status

__all__ = ["cluster", "slurm"]
pytestmark = [pytest.mark.slow, pytest.mark.nightly]


def ranks(run_id: str) -> list[psutil.Process]:
    return [one for one in processes.marked(RUN_VARIABLE, run_id) if "rank" in one.cmdline()]


def supervisor(run: Run) -> psutil.Process:
    owner = Identity.parse(run.holder)
    assert owner is not None
    return psutil.Process(owner.pid)


def test_a_run_survives_the_death_of_a_rank_its_supervisor_and_slurms_daemons(slurm: Installation) -> None:
    run_id = slurm.light(500)
    first = slurm.trains(run_id, 10, 1)
    assert sorted(first.devices) == [f"n1/slurm:{first.job_id}", f"n2/slurm:{first.job_id}"]

    ranks(run_id)[-1].kill()
    second = slurm.trains(run_id, 20, 2)
    slurm.cluster.kill("slurmctld")  # while it is away, the run trains and other runs wait
    waiting = slurm.light(20)
    supervisor(second).kill()
    expire(run_id)
    slurm.until(run_id, lambda run: run.status is Status.QUEUED or run.attempt > 2)
    assert (slurm.get(waiting).status, slurm.get(waiting).attempt) == (Status.QUEUED, 0)
    slurm.cluster.start_controller()

    slurm.trains(run_id, 30, 3)
    slurm.cluster.kill("n2")
    slurm.cluster.start_node("n2")
    slurm.finished_undisturbed(waiting)
    ended = slurm.finished_undisturbed(run_id)
    assert ended.attempt >= 3


def test_a_job_near_its_time_limit_saves_and_queues_itself_again(slurm: Installation) -> None:
    run_id = slurm.light(200)
    first = slurm.trains(run_id, 10, 1)
    # What --signal=B:USR1@... sends before the limit; limits are whole minutes.
    slurm.cluster.call("scancel", "--batch", "--signal=USR1", str(first.job_id))
    slurm.until(run_id, pending)
    second = slurm.continues(run_id, first.step, 2)
    assert second.job_id == first.job_id, "the same job, with its age"
    with db.read() as session:
        outcomes = [attempt.outcome for attempt in runs.attempts(session=session, run_id=run_id)]
    assert outcomes[0] == "requeued", "it does not count as a failure"
    slurm.finished_undisturbed(run_id)


def test_a_preempted_run_saves_within_its_grace_and_goes_on(slurm: Installation) -> None:
    run_id = slurm.light(200)
    slurm.trains(run_id, 10, 1)
    argv = ["--parsable", "--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 2"]
    slurm.cluster.call("sbatch", *argv)
    slurm.until(run_id, lambda run: run.status is Status.QUEUED)
    assert "Saved at step" in slurm.told(run_id)
    slurm.finished_undisturbed(run_id)


def test_a_run_whose_job_is_cancelled_outside_is_stopped_and_can_be_resumed(slurm: Installation) -> None:
    run_id = slurm.light(150)
    first = slurm.trains(run_id, 10, 1)
    slurm.cluster.call("scancel", str(first.job_id))
    stopped = slurm.until_end(run_id)
    assert stopped.status is Status.STOPPED
    assert f"Slurm job {first.job_id} was cancelled outside of Lathe" in slurm.told(run_id)
    with db.write() as session:
        runs.resume(session=session, run_id=run_id)
    slurm.finished_undisturbed(run_id)


def test_a_waiting_run_says_what_it_waits_for_and_is_cancelled_with_its_job(slurm: Installation) -> None:
    slurm.cluster.call("sbatch", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 100")
    run_id = slurm.light(5)
    run = slurm.until(run_id, lambda run: run.job and run.job["reason"] not in ("", "None"))
    assert run.job and run.job_id
    sentence = jobs.waiting_sentence(run.job_id, run.job, time.time())
    assert sentence.startswith("Waits for 2 nodes of partition batch: ") and "Slurm says" not in sentence
    capacity = engine(get_settings().engine_names[0]).capacity()
    assert {pool.name: pool.machines for pool in capacity.pools} == {"batch": 2, "urgent": 2}
    assert (capacity.waiting, capacity.running, capacity.problem) == (1, 0, "")
    with db.write() as session:
        runs.request_stop(session=session, run_id=run_id)
    reaper.run_round()
    assert run.job_id not in slurm.cluster.call("squeue", "--noheader", "--format=%i").split()


def test_a_job_that_was_submitted_before_a_crash_is_found_again(slurm: Installation) -> None:
    run_id = slurm.light(5)
    config = RunConfig.model_validate(slurm.get(run_id).config)
    argv, script = jobs.submission(config, run_id, 1, get_settings(), boot())
    (get_settings().runs_dir / run_id).mkdir()
    job_id = call([*argv, "--hold"], text=script).strip()
    ended = subprocess.Popen(["true"])
    killed = str(Identity.of(ended.pid))  # a worker that was killed between sbatch and writing the id
    ended.wait()
    with db.write() as session:
        assert stored.reserve(session=session, run=slurm.get(run_id), owner=killed)
    run = slurm.until(run_id, lambda run: not stored.reserved_by(run))
    assert run.job_id == job_id
    slurm.cluster.call("scontrol", "release", job_id)
    assert slurm.finished_undisturbed(run_id).attempt == 1


def test_a_job_that_another_worker_submits_during_a_round_is_not_cancelled(slurm: Installation) -> None:
    slurm.cluster.call("sbatch", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 100")
    submitted: list[str] = []

    class LateCluster(Cluster):
        """Another worker queues and submits a run between the round's reading of rows and of jobs."""

        def jobs(self, *, now: bool = False) -> dict[str, Job]:
            if not submitted:
                submitted.append(slurm.light(5))
                Round(Cluster()).run()
            return super().jobs(now=now)

    Round(LateCluster()).run()
    run = slurm.get(submitted[0])
    state = slurm.cluster.call("squeue", "--noheader", f"--jobs={run.job_id}", "--format=%T").strip()
    assert (run.status, state) == (Status.QUEUED, "PENDING")


def test_a_job_that_is_newer_than_the_known_jobs_is_not_replaced(slurm: Installation) -> None:
    slurm.cluster.call("sbatch", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 100")
    earlier = Cluster()
    earlier.jobs()
    run_id = slurm.light(5)
    Round(Cluster()).run()
    job_id = slurm.get(run_id).job_id
    Round(earlier).run()
    assert job_id is not None and slurm.get(run_id).job_id == job_id


def test_an_id_that_a_killed_controller_gave_again_is_another_runs(slurm: Installation) -> None:
    """Both runs have the id of a job of the second, which is cancelled: the first gets a job of its own."""
    slurm.cluster.call("sbatch", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 100")
    first, second = slurm.light(5), slurm.light(5)
    Round(Cluster()).run()
    job_id = str(slurm.get(second).job_id)
    with db.write() as session:
        session.exec(update(Run).where(col(Run.id) == first).values(job_id=job_id))
    slurm.cluster.call("scancel", job_id)
    for _ in range(3):
        Round(Cluster()).run()
    assert (slurm.get(first).status, slurm.get(second).status) == (Status.QUEUED, Status.STOPPED)
    assert slurm.get(first).job_id != job_id


def test_only_the_job_of_its_own_run_is_cancelled(slurm: Installation) -> None:
    """The job of a run that was stopped has an id that a killed controller has since given to another run's job."""
    slurm.cluster.call("sbatch", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 100")
    stopped, other = slurm.light(5), slurm.light(5)
    with db.write() as session:
        runs.request_stop(session=session, run_id=stopped)
    Round(Cluster()).run()
    job_id = str(slurm.get(other).job_id)

    class EarlierCluster(Cluster):
        """The jobs as they were before the controller was killed."""

        def jobs(self, *, now: bool = False) -> dict[str, Job]:
            known = super().jobs(now=now)
            return known if now else {job_id: replace(known[job_id], run_id=stopped)}

    Round(EarlierCluster()).run()
    assert Cluster().jobs()[job_id].state == jobs.PENDING


def test_a_job_that_has_ended_can_be_cancelled_again(slurm: Installation) -> None:
    slurm.cluster.call("sbatch", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 100")
    run_id = slurm.light(5)
    Round(Cluster()).run()
    job = Cluster().job_of(slurm.get(run_id))
    assert job is not None
    for known in (job, job, replace(job, id="99999")):
        Cluster().cancel(known)
    assert Cluster().jobs()[job.id].state == jobs.CANCELLED


@contextmanager
def broken_nodes(cluster: SlurmCluster) -> Iterator[None]:
    """The nodes cannot write the scripts of jobs, as with a full disk: Slurm holds jobs whose launch failed."""
    spools = [cluster.folder / f"spool-{name}" for name in cluster.names]
    for spool in spools:
        spool.rename(spool.with_suffix(".away"))
        spool.write_text("")
    try:
        yield
    finally:
        for spool in spools:
            spool.unlink()
            spool.with_suffix(".away").rename(spool)


def test_a_job_that_its_node_could_not_launch_is_submitted_again(slurm: Installation) -> None:
    with broken_nodes(slurm.cluster):
        run_id = slurm.light(5)
        slurm.until(run_id, lambda run: (run.job or {}).get("tries"))
    assert slurm.finished_undisturbed(run_id).attempt == 1


def test_a_run_whose_job_another_worker_replaces_during_a_round_is_not_stopped(slurm: Installation) -> None:
    """The round read the run's row before the other worker cancelled the job that could not be launched."""
    run_id = slurm.light(5)
    with broken_nodes(slurm.cluster):
        Round(Cluster()).run()
        job_id = str(slurm.get(run_id).job_id)
        slurm.wait(lambda: Cluster().jobs()[job_id].failed_to_launch)

    class LateCluster(Cluster):
        def jobs(self, *, now: bool = False) -> dict[str, Job]:
            if slurm.get(run_id).job_id == job_id:
                Round(Cluster()).run()
            return super().jobs(now=now)

    Round(LateCluster()).run()
    assert Cluster().jobs()[job_id].state == jobs.CANCELLED
    assert slurm.get(run_id).status is Status.QUEUED
    assert slurm.finished_undisturbed(run_id).attempt == 1


def test_a_job_that_starts_during_a_round_is_not_replaced(slurm: Installation) -> None:
    """The round knows the job as one whose launch failed; meanwhile somebody has released it."""
    run_id = slurm.light(200)
    slurm.cluster.call(
        "sbatch", "--nodes=2", "--exclusive", "--output=/dev/null", "--job-name=first", "--wrap=sleep 100"
    )
    Round(Cluster()).run()
    job = Cluster().job_of(slurm.get(run_id))
    assert job is not None and job.state == jobs.PENDING

    class EarlierCluster(Cluster):
        def jobs(self, *, now: bool = False) -> dict[str, Job]:
            slurm.cluster.call("scancel", "--name=first")
            slurm.wait(lambda: slurm.get(run_id).step > 0)
            return {job.id: replace(job, reason="launch failed requeued held")}

    Round(EarlierCluster()).run()
    assert slurm.finished_undisturbed(run_id).attempt == 1


def test_a_run_whose_jobs_no_node_can_launch_fails(slurm: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LATHE_MAX_ATTEMPTS", "2")
    get_settings.cache_clear()
    with broken_nodes(slurm.cluster):
        run = slurm.until_end(slurm.light(5))
    assert run.status is Status.FAILED and run.error
    assert re.match(r"Slurm job \d+ is held, its launch failed: 2 jobs ended", run.error["message"])
    slurm.nothing_left()


def test_a_run_that_slurm_refuses_fails_with_slurms_reason(slurm: Installation) -> None:
    run_id = slurm.light(5, slurm_options="partition=nowhere")
    run = slurm.until_end(run_id)
    assert run.error and "invalid partition" in run.error["message"].lower()


def test_a_run_that_slurm_refuses_fails_also_after_a_crash_before_its_submission(slurm: Installation) -> None:
    run_id = slurm.light(5, slurm_options="partition=nowhere")
    ended = subprocess.Popen(["true"])
    killed = str(Identity.of(ended.pid))
    ended.wait()
    with db.write() as session:
        assert stored.reserve(session=session, run=slurm.get(run_id), owner=killed)
    Round(Cluster()).run()
    run = slurm.get(run_id)
    assert (run.status, run.job_id) == (Status.FAILED, None)


def test_stop_saves_within_the_grace_and_frees_the_nodes(slurm: Installation) -> None:
    run_id = slurm.light(2000)
    slurm.trains(run_id, 10, 1)
    with db.write() as session:
        runs.request_stop(session=session, run_id=run_id)
    stopped = slurm.until_end(run_id)
    assert stopped.status is Status.STOPPED and "Saved at step" in slurm.told(run_id)
    slurm.nothing_left()
    assert not ranks(run_id)
