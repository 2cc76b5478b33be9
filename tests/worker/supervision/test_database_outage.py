"""PostgreSQL stops or hangs for a while: training continues while its lease is valid; nothing is lost or doubled."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from paths import PROGRAMS, ROOT
from patience import ended, eventually
from played_run import PlayedRun
from postgres_cluster import Cluster, programs
from sqlmodel import select
from supervised import Supervised, get, living, queue_run, started, supervise  # noqa: F401
from tiny import make_data, make_model

from training.config.run_config import RunConfig
from training.run_folder.paths import RUN_VARIABLE, SUPERVISOR_LOG
from worker.evaluations import starting as evaluations
from worker.evaluations.submit import submit
from worker.machine import overload, processes
from worker.machine.process_identity import me
from worker.machine.processes import is_gone
from worker.queue import reaper
from worker.serving import processes as serving
from worker.settings import get_settings
from worker.store import claims, runs, served_models
from worker.store import database as db
from worker.store.tables import Evaluation, Metric, ServedModel, ServedState, Status

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


@pytest.fixture
def serve(installation: Cluster, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Callable[[], ServedModel]]:
    """Serves a model by a stand-in under a lease of so many seconds; returns how to read its row, which is ready."""
    monkeypatch.setattr(
        serving, "program", lambda planned: [sys.executable, str(PROGRAMS / "stand_in_server.py"), planned.model]
    )
    monkeypatch.setenv("LATHE_RENEW_SECONDS", "0.1")

    def start(lease_seconds: str) -> Callable[[], ServedModel]:
        monkeypatch.setenv("LATHE_LEASE_SECONDS", lease_seconds)
        get_settings.cache_clear()
        run = PlayedRun().claim("elsewhere/cpu")
        run.end(Status.FAILED)
        with db.write() as session:
            served_id = served_models.create(session=session, models=[f"{run.id}:base"], owner="local").id

        def served() -> ServedModel:
            with db.read() as session:
                return served_models.get(session=session, served_id=served_id)

        serving.start_waiting()
        eventually(lambda: served().state is ServedState.READY)
        return served

    return start


def test_a_served_model_ends_in_an_outage_that_is_longer_than_its_lease(
    installation: Cluster, serve: Callable[[str], Callable[[], ServedModel]]
) -> None:
    """Otherwise another worker would lease its device while it still uses it."""
    served = serve("3")
    process = psutil.Process(eventually(lambda: served().pid))
    installation.stop()
    eventually(lambda: is_gone(process))
    installation.start()
    eventually(lambda: (serving.recover(), served().state is ServedState.ENDED)[1])


@pytest.mark.parametrize("how", ["stopped", "frozen"])
def test_a_served_model_answers_during_a_shorter_outage_and_goes_on(
    installation: Cluster, serve: Callable[[str], Callable[[], ServedModel]], how: str
) -> None:
    served = serve("600")
    before = served()
    installation.stop() if how == "stopped" else installation.freeze()
    for _ in range(20):  # longer than several renewals
        assert httpx.get(f"http://{before.address}/health").status_code == 200
        time.sleep(0.1)
    installation.start() if how == "stopped" else installation.thaw()
    renewed = served().expires_at or 0
    eventually(lambda: (served().expires_at or 0) > renewed)
    serving.recover()
    after = served()
    assert (after.state, after.pid, after.address) == (ServedState.READY, before.pid, before.address)
    with db.write() as session:
        served_models.request_end(session=session, served_id=after.id, reason="The test ends.")
    eventually(lambda: served().state is ServedState.ENDED)


@pytest.fixture
def ended_run(installation: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """A finished run of a tiny model, and rows for it."""
    monkeypatch.setattr(overload, "here", lambda: "")
    model, data = make_model(tmp_path / "model"), make_data(tmp_path / "rows.jsonl", rows=6)
    run = PlayedRun("tiny", model=str(model), data=str(data), max_new_tokens=4).claim("elsewhere/cpu")
    return run.leave_result(), str(data)


def evaluation_of(run_id: str, data: str) -> tuple[str, Callable[[], Evaluation]]:
    item = submit(run_id, {"source": "base", "metrics": ["exact_match"]}, data=data)

    def row() -> Evaluation:
        with db.read() as session:
            return session.get_one(Evaluation, item.id)

    return f"evaluation-{item.id}", row


@pytest.mark.usefixtures("started")
@pytest.mark.parametrize("lease_seconds", ["600", "3"])
@pytest.mark.parametrize("how", ["stopped", "frozen"])
def test_an_evaluation_in_an_outage_is_finished_or_begun_again(
    installation: Cluster, ended_run: tuple[str, str], monkeypatch: pytest.MonkeyPatch, how: str, lease_seconds: str
) -> None:
    monkeypatch.setenv("LATHE_RENEW_SECONDS", "0.5")
    monkeypatch.setenv("LATHE_LEASE_SECONDS", lease_seconds)
    get_settings.cache_clear()
    mark, row = evaluation_of(*ended_run)
    evaluations.start_waiting()
    eventually(lambda: processes.marked(RUN_VARIABLE, mark), every=0.1)
    installation.stop() if how == "stopped" else installation.freeze()
    eventually(lambda: not processes.marked(RUN_VARIABLE, mark), every=0.1)  # it has answered, or was killed
    installation.start() if how == "stopped" else installation.thaw()

    def ended_at_last() -> bool:
        evaluations.recover()
        evaluations.start_waiting()
        return row().status.ended

    eventually(ended_at_last, every=0.2)
    assert (row().status, row().error) == (Status.FINISHED, None)
    assert row().attempt == 1 or lease_seconds == "3"


def test_a_run_that_distills_goes_on_during_an_outage(
    installation: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, data = make_model(tmp_path / "model"), make_data(tmp_path / "data.jsonl", rows=24)
    settings = {"task": "distill", "teacher": str(model), "max_steps": 12, "micro_batch_size": 2, "max_length": 128}
    settings |= {"max_completion_length": 8, "save_steps": 4, "eval_split": 0, "eval_steps": 0, "verify_rows": 2}
    config = RunConfig.model_validate({"model": str(model), "data": str(data)} | settings)
    with db.write() as session:
        run_id = runs.create(session=session, config=config, dataset_id=None, name="a run").id
        owner, lease = str(me()), get_settings().lease_seconds
        claims.claim(session=session, run_id=run_id, owner=owner, devices=[f"{me().host}/cpu"], lease_seconds=lease)
    argv = [sys.executable, "-m", "worker.supervision.supervisor", run_id, "1"]
    supervisor = subprocess.Popen(argv, env=os.environ | {"PYTHONPATH": str(ROOT)})
    records = get_settings().runs_dir / run_id / "events.jsonl"
    try:
        eventually(lambda: get(run_id).step >= 1, [supervisor])
        installation.stop()
        eventually(lambda: b'"kind":"result"' in records.read_bytes(), [supervisor])
        eventually(lambda: not living(run_id), [supervisor])
    finally:
        installation.start()
        ended(supervisor)
    run = get(run_id)
    assert (run.status, run.attempt, run.undone, loss_steps(run_id)) == (Status.FINISHED, 1, {}, list(range(1, 13)))


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
