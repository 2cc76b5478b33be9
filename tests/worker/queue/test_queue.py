"""Queue messages: without a worker, repeated, and to many workers at once."""

import json
import os
import signal
import subprocess
import sys
import threading
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socketserver import BaseRequestHandler, TCPServer

import pytest
from paths import ROOT, TESTS
from patience import eventually
from programs.stand_in import GO_FILE
from programs.stand_in_nursery import Forked
from redis import Redis, RedisError
from sqlmodel import select
from supervised import get, nursery, queue_run

from worker import celery_app
from worker.queue import local_broker, tasks
from worker.settings import get_settings
from worker.store import database as db
from worker.store.tables import Attempt, Machine, Status

pytestmark = pytest.mark.slow

REDIS_PORT = 6379
REDIS_NUMBER = 1 + os.getpid() % 12  # of Redis's 16 databases, not the default one


@pytest.fixture
def valkey(home: Path) -> Iterator[Redis]:
    server = local_broker.start(get_settings())
    with Redis(unix_socket_path=str(get_settings().socket_path)) as client:
        yield client
    local_broker.stop(server)


@pytest.fixture
def redis(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Redis]:
    """A Redis server on this machine, if there is one."""
    client = Redis(port=REDIS_PORT, db=REDIS_NUMBER, socket_connect_timeout=1)
    try:
        client.ping()
    except RedisError:
        pytest.skip(f"no Redis answers on port {REDIS_PORT}")
    monkeypatch.setenv("LATHE_BROKER_URL", f"redis://127.0.0.1:{REDIS_PORT}/{REDIS_NUMBER}")
    get_settings.cache_clear()
    with client:
        yield client
        client.delete(celery_app.NAME, *client.keys("_kombu.*"), *client.keys("unacked*"))


@pytest.fixture(params=["valkey", pytest.param("redis", marks=pytest.mark.nightly)])
def server(request: pytest.FixtureRequest) -> Redis:
    """Each server that the queue may be on."""
    client: Redis = request.getfixturevalue(request.param)
    return client


@contextmanager
def workers(count: int) -> Iterator[list[Forked]]:
    """Celery workers with four threads each, ready for messages."""
    words = tasks.worker_command()
    words[words.index("worker.queue.tasks")] = "programs.stand_in_worker"
    arguments = [*words[words.index("celery") + 1 :], "--concurrency", "4"]
    log = get_settings().data_dir / "workers.log"
    log.touch()
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    names = [f"worker{number}@test" for number in range(count)]
    started = [nursery().fork("celery", [*arguments, "--hostname", name], log, TESTS, env) for name in names]
    try:
        eventually(lambda: log.read_text().count(" ready.") == count)
        yield started
    finally:
        for worker in started:
            worker.end()


def test_a_worker_reports_its_machine_and_that_it_stops(valkey: Redis) -> None:
    def draining() -> list[bool]:
        with db.read() as session:
            return list(session.exec(select(Machine.draining)))

    with workers(1) as [worker]:
        assert eventually(draining) == [False]
        worker.process.terminate()
        worker.wait()
        assert draining() == [True]


def attempts(run_id: str) -> list[str]:
    with db.read() as session:
        return list(session.exec(select(Attempt.outcome).where(Attempt.run_id == run_id)))


def test_a_message_contains_only_the_run_id(server: Redis) -> None:
    assert celery_app.notify("run1")
    message = json.loads(server.lrange(celery_app.NAME, 0, -1)[0])  # type: ignore[index]
    assert message["headers"]["task"] == celery_app.START_RUN
    assert json.loads(b64decode(message["body"]))[:2] == [["run1"], {}]


def test_twenty_messages_to_eight_consumers_start_a_run_once(server: Redis) -> None:
    with workers(2):
        run_id = queue_run(steps=3)
        rings = [threading.Thread(target=celery_app.notify, args=(run_id,)) for _ in range(20)]
        for ring in rings:
            ring.start()
        for ring in rings:
            ring.join()
        eventually(lambda: get(run_id).status.ended)
        eventually(lambda: server.llen(celery_app.NAME) == 0)
    assert (get(run_id).status, attempts(run_id)) == (Status.FINISHED, ["finished"])


def test_workers_survive_the_broker_and_training_survives_the_worker(valkey: Redis) -> None:
    with workers(1) as (worker,):
        run_id = queue_run(steps=5, hold=3)
        celery_app.notify(run_id)
        eventually(lambda: get(run_id).step == 2)
        valkey.shutdown(nosave=True)
        second = queue_run(steps=1)
        assert not celery_app.notify(second)
        worker.process.kill()
        worker.wait()
        (get_settings().runs_dir / run_id / GO_FILE).touch()
        eventually(lambda: get(run_id).status is Status.FINISHED)
        assert get(second).status is Status.QUEUED
    assert attempts(run_id) == ["finished"]


def test_runs_queued_while_the_broker_is_down_still_start(home: Path) -> None:
    server = local_broker.start(get_settings())
    with workers(1):
        local_broker.stop(server)
        run_id = queue_run(steps=1)
        assert not celery_app.notify(run_id)
        eventually(lambda: get(run_id).status is Status.FINISHED)
        server = local_broker.start(get_settings())
        run_id = queue_run(steps=1)
        eventually(lambda: celery_app.notify(run_id))
        eventually(lambda: get(run_id).status is Status.FINISHED)
    local_broker.stop(server)


def test_a_run_whose_message_was_flushed_still_starts(valkey: Redis) -> None:
    run_id = queue_run(steps=1)
    celery_app.notify(run_id)
    valkey.flushall()
    with workers(1):
        eventually(lambda: get(run_id).status is Status.FINISHED)


def test_notifying_fails_quickly_without_a_broker(home: Path) -> None:
    assert not celery_app.notify("run1")


def test_notifying_fails_quickly_with_a_hanging_broker(valkey: Redis) -> None:
    pid = int(valkey.info("server")["process_id"])
    os.kill(pid, signal.SIGSTOP)
    try:
        assert not celery_app.notify("run1")
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize(
    "answer", [b"", b"junk\r\n", b"-ERR no\r\n", b"$-5\r\n", b"*1000000000\r\n", b"\xff\0\r\n", b"+OK\r\n" * 9]
)
def test_notifying_fails_without_an_error_if_the_broker_answers_junk(
    home: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    class Junk(BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(1024)
            self.request.sendall(answer)

    with TCPServer(("127.0.0.1", 0), Junk) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        monkeypatch.setenv("LATHE_BROKER_URL", f"redis://127.0.0.1:{server.server_address[1]}/0")
        get_settings.cache_clear()
        assert not celery_app.notify("run1")
        server.shutdown()


def test_notifying_reconnects_after_a_broker_restart(home: Path) -> None:
    for _ in range(2):
        server = local_broker.start(get_settings())
        assert celery_app.notify("run1")
        local_broker.stop(server)


AT_ONCE = """
import threading
from worker import celery_app

start, failed = threading.Barrier(6), []

def use():
    start.wait()
    try:
        celery_app.current_app()
    except BaseException as error:
        failed.append(error)

threads = [threading.Thread(target=use) for _ in range(6)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(failed)
"""


def test_the_first_requests_of_a_server_may_come_at_once():
    for _ in range(3):  # Celery cannot be imported by two threads at once; that shows in about one of three processes
        done = subprocess.run([sys.executable, "-c", AT_ONCE], cwd=ROOT, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "[]"
