"""The doorbell: rung to nobody, often, and to many at once."""

import json
import os
import signal
import subprocess
import threading
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from redis import Redis, RedisError
from sqlmodel import select
from stand_in import ROOT
from supervised import eventually, get, queue_run

from worker import broker, process, queue, tasks
from worker import database as db
from worker.models import Attempt, Status
from worker.settings import get_settings

REDIS_PORT = 6379
REDIS_NUMBER = 9 + os.getpid() % 7  # of Redis's 16 databases: not the one that people use


@pytest.fixture
def valkey(home: Path) -> Iterator[Redis]:
    server = broker.start(get_settings())
    with Redis(unix_socket_path=str(get_settings().socket_path)) as client:
        yield client
    broker.stop(server)


@pytest.fixture
def redis(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Redis]:
    """A Redis server that listens on this machine, where there is one."""
    client = Redis(port=REDIS_PORT, db=REDIS_NUMBER, socket_connect_timeout=1)
    try:
        client.ping()
    except RedisError:
        pytest.skip(f"no Redis answers on port {REDIS_PORT}")
    monkeypatch.setenv("LATHE_BROKER_URL", f"redis://127.0.0.1:{REDIS_PORT}/{REDIS_NUMBER}")
    get_settings.cache_clear()
    with client:
        yield client
        client.delete(queue.NAME, *client.keys("_kombu.*"), *client.keys("unacked*"))


@pytest.fixture(params=["valkey", "redis"])
def server(request: pytest.FixtureRequest) -> Redis:
    """Each server that the queue may be on."""
    client: Redis = request.getfixturevalue(request.param)
    return client


@contextmanager
def workers(count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Celery workers of four threads each, once they listen."""
    words = [*tasks.worker_command(), "--concurrency", "4"]
    words[words.index("worker.tasks")] = "stand_in_worker"
    log = get_settings().data_dir / "workers.log"
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    with log.open("ab") as output:
        argvs = [[*words, "--hostname", f"worker{number}@test"] for number in range(count)]
        started = [
            subprocess.Popen(argv, cwd=Path(__file__).parent, env=env, stdout=output, stderr=output) for argv in argvs
        ]
    try:
        eventually(lambda: log.read_text().count(" ready.") == count, seconds=40)
        yield started
    finally:
        for worker in started:
            process.kill_tree(worker.pid)
            worker.wait()


def compilers(worker: psutil.Process) -> list[psutil.Process]:
    return [child for child in worker.children() if "training.compile_operators" in child.cmdline()]


def test_a_worker_compiles_deepspeeds_operators_beside_it_and_never_outlives_it(valkey: Redis) -> None:
    with workers(1) as [worker]:
        compiler = eventually(lambda: compilers(psutil.Process(worker.pid)))[0]
        worker.kill()
        eventually(lambda: process.is_gone(compiler))


def attempts(run_id: str) -> list[str]:
    with db.read() as session:
        return list(session.exec(select(Attempt.outcome).where(Attempt.run_id == run_id)))


def test_a_message_holds_the_runs_id_and_nothing_else(server: Redis) -> None:
    assert queue.ring("run1")
    message = json.loads(server.lrange(queue.NAME, 0, -1)[0])  # type: ignore[index]
    assert message["headers"]["task"] == queue.START_RUN
    assert json.loads(b64decode(message["body"]))[:2] == [["run1"], {}]


def test_twenty_rings_at_eight_consumers_start_a_run_once(server: Redis) -> None:
    with workers(2):
        run_id = queue_run(steps=3)
        rings = [threading.Thread(target=queue.ring, args=(run_id,)) for _ in range(20)]
        for ring in rings:
            ring.start()
        for ring in rings:
            ring.join()
        eventually(lambda: get(run_id).status.ended, seconds=30)
        eventually(lambda: server.llen(queue.NAME) == 0)
    assert (get(run_id).status, attempts(run_id)) == (Status.FINISHED, ["finished"])


def test_a_worker_outlives_its_broker_and_training_outlives_its_worker(valkey: Redis) -> None:
    with workers(1) as (worker,):
        run_id = queue_run(steps=60, pause=0.05)
        queue.ring(run_id)
        eventually(lambda: get(run_id).step > 1)
        valkey.shutdown(nosave=True)
        second = queue_run(steps=1)
        assert not queue.ring(second)
        worker.kill()
        worker.wait()
        eventually(lambda: get(run_id).status is Status.FINISHED)
        assert get(second).status is Status.QUEUED
    assert attempts(run_id) == ["finished"]


def test_rings_while_the_broker_is_away_are_made_good_without_it(home: Path) -> None:
    server = broker.start(get_settings())
    with workers(1):
        broker.stop(server)
        run_id = queue_run(steps=1)
        assert not queue.ring(run_id)
        eventually(lambda: get(run_id).status is Status.FINISHED)
        server = broker.start(get_settings())
        run_id = queue_run(steps=1)
        eventually(lambda: queue.ring(run_id))
        eventually(lambda: get(run_id).status is Status.FINISHED)
    broker.stop(server)


def test_ringing_fails_soon_where_nobody_listens(home: Path) -> None:
    assert not queue.ring("run1")


def test_ringing_fails_soon_where_the_server_hangs(valkey: Redis) -> None:
    pid = int(valkey.info("server")["process_id"])
    os.kill(pid, signal.SIGSTOP)
    try:
        assert not queue.ring("run1")
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_connection_that_a_restarted_server_has_forgotten_is_made_anew(home: Path) -> None:
    for _ in range(2):
        server = broker.start(get_settings())
        assert queue.ring("run1")
        broker.stop(server)
