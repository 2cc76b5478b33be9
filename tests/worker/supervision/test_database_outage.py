"""PostgreSQL stops or hangs for a while: training continues while its lease is valid; nothing is lost or doubled."""

import sys
from collections.abc import Iterator

import psutil
import pytest
from paths import PROGRAMS
from patience import eventually
from played_run import PlayedRun
from postgres_cluster import Cluster, programs
from sqlmodel import select
from supervised import Supervised, get, living, queue_run, started, supervise  # noqa: F401

from training.run_folder.paths import SUPERVISOR_LOG
from worker.machine.processes import is_gone
from worker.queue import reaper
from worker.serving import processes as serving
from worker.settings import get_settings
from worker.store import claims, served_models
from worker.store import database as db
from worker.store.tables import Metric, ServedModel, ServedState, Status

pytestmark = [pytest.mark.slow, pytest.mark.nightly]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    folder = programs()
    if folder is None:
        pytest.skip("no PostgreSQL server is installed here")
    server = Cluster(folder)
    yield server
    server.remove()


@pytest.fixture
def installation(cluster: Cluster, home: object, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """An installation on that server."""
    monkeypatch.setenv("LATHE_DATABASE_URL", cluster.url)
    get_settings.cache_clear()
    db.migrate()
    yield cluster
    db.dispose()


def loss_steps(run_id: str) -> list[int]:
    with db.read() as session:
        losses = select(Metric.step).where(Metric.run_id == run_id, Metric.name == "loss").order_by(Metric.step)
        return list(session.exec(losses))


def log_of(it: Supervised) -> str:
    return (it.run_dir / SUPERVISOR_LOG).read_text()


def steps_recorded(it: Supervised) -> int:
    return (it.run_dir / "events.jsonl").read_bytes().count(b'"loss"')


@pytest.mark.parametrize("how", ["stopped", "frozen"])
def test_training_continues_during_a_database_outage_and_all_records_are_stored_afterwards(
    installation: Cluster, how: str
) -> None:
    with supervise(queue_run(steps=80, hold=4)) as it:
        it.until(lambda run: run.step == 3)
        installation.stop() if how == "stopped" else installation.freeze()
        it.go()
        eventually(lambda: steps_recorded(it) > 40)
        installation.start() if how == "stopped" else installation.thaw()
        run = it.wait()
    assert (run.status, run.attempt, loss_steps(run.id)) == (Status.FINISHED, 1, list(range(1, 81)))


def test_an_outage_longer_than_the_lease_resumes_from_the_checkpoint_and_costs_no_attempt(
    installation: Cluster,
) -> None:
    run_id = queue_run(steps=100, save_at=2, hold=4)
    with supervise(run_id) as it:
        it.until(lambda run: run.step > 2)
        it.process.terminate()
        it.wait()
    with supervise(run_id, lease_seconds=1.0) as it:
        it.until(lambda run: run.phase == "training" or run.status is Status.QUEUED)
        installation.stop()
        eventually(lambda: not living(run_id))
        eventually(lambda: log_of(it).count("the database is unreachable") > 6)  # more than another lease
        installation.start()
        run = it.wait()
    assert run.status is Status.QUEUED
    with db.read() as session:
        assert claims.failed_attempts(session=session, run=run) == 0
    with supervise(run_id) as it:
        it.go()
        run = it.wait()
        assert "Resumed from step" in it.told()
    assert (run.status, run.attempt, loss_steps(run_id)) == (Status.FINISHED, 3, list(range(1, 101)))


def test_a_served_model_ends_in_an_outage_that_is_longer_than_its_lease(
    installation: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise another worker would lease its device while it still uses it."""
    monkeypatch.setattr(
        serving, "program", lambda planned: [sys.executable, str(PROGRAMS / "stand_in_server.py"), planned.model]
    )
    monkeypatch.setenv("LATHE_LEASE_SECONDS", "3")
    monkeypatch.setenv("LATHE_RENEW_SECONDS", "0.1")
    get_settings.cache_clear()
    run = PlayedRun().claim("elsewhere/cpu")
    with db.write() as session:
        served_id = served_models.create(session=session, models=[f"{run.id}:base"], owner="local").id

    def served() -> ServedModel:
        with db.read() as session:
            return served_models.get(session=session, served_id=served_id)

    serving.start_waiting()
    process = psutil.Process(eventually(lambda: served().state is ServedState.READY and served().pid))
    installation.stop()
    eventually(lambda: is_gone(process))
    installation.start()
    eventually(lambda: (serving.recover(), served().state is ServedState.ENDED)[1])


@pytest.mark.usefixtures("started")
def test_a_worker_starts_queued_runs_after_a_database_outage(installation: Cluster) -> None:
    run_id = queue_run(steps=1)
    rounds = reaper.Reaper()
    installation.stop()
    rounds.start()
    try:
        installation.start()
        eventually(lambda: get(run_id).status is Status.FINISHED)
    finally:
        rounds.stop()
        rounds.join()
    assert get(run_id).attempt == 1
