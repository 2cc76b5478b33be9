"""The containers' commands, run as processes with a real PostgreSQL and Redis server, if available."""

import os
import secrets
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest
import redis
from deploy_files import SERVICES, environment, stages
from patience import ended, eventually

pytestmark = pytest.mark.slow

POSTGRES = "host=127.0.0.1 port=5432 user=postgres dbname=postgres connect_timeout=2"
REDIS_DATABASE = 13
PROGRAMS = {
    "python": [sys.executable],
    "lathe": [sys.executable, "-m", "app.cli.__main__"],
    "celery": [sys.executable, "-m", "celery"],
}


@pytest.fixture
def postgresql():
    """The URL of an empty database that is dropped afterwards."""
    name = f"lathe_test_{secrets.token_hex(4)}"
    try:
        server = psycopg.connect(POSTGRES, autocommit=True)
    except psycopg.OperationalError as error:
        pytest.skip(f"no PostgreSQL at 127.0.0.1:5432 for the user postgres: {error}")
    with server:
        server.execute(f"CREATE DATABASE {name}")
        yield f"postgresql://postgres@127.0.0.1:5432/{name}"
        server.execute(f"DROP DATABASE {name} WITH (FORCE)")
    server.close()


@pytest.fixture
def broker():
    """The URL of a Redis database that is empty before and after."""
    client = redis.Redis(port=6379, db=REDIS_DATABASE, socket_connect_timeout=2)
    try:
        client.flushdb()
    except redis.ConnectionError as error:
        pytest.skip(f"no Redis at 127.0.0.1:6379: {error}")
    yield f"redis://127.0.0.1:6379/{REDIS_DATABASE}"
    client.flushdb()
    client.close()


@pytest.fixture
def containers(postgresql, broker, tmp_path):
    """Functions that run a service's command like its container, with this machine's addresses."""
    places = {
        "LATHE_DATA_DIR": str(tmp_path / "data"),
        "LATHE_DATABASE_URL": postgresql,
        "LATHE_BROKER_URL": broker,
        "LATHE_HOST": "127.0.0.1",
        "LATHE_PORT": str(free_port()),
        "LATHE_DEVICES": "cpu",
    }

    def variables(service):
        values = environment(service, {})
        assert set(values) >= {"LATHE_DATA_DIR", "LATHE_DATABASE_URL", "LATHE_BROKER_URL"}
        ours = {name: value for name, value in os.environ.items() if not name.startswith("LATHE_")}
        passed = {*values, "LATHE_PORT", "LATHE_DEVICES"}
        return ours | values | {name: value for name, value in places.items() if name in passed}

    with ExitStack() as running:
        yield Containers(variables, tmp_path, running)


class Containers:
    def __init__(self, variables, folder: Path, running: ExitStack):
        self._variables, self._folder, self._running = variables, folder, running
        self._processes = {}

    def start(self, service):
        """Starts a service's command; what it prints goes to a file."""
        command = SERVICES[service]["command"]
        output = self._running.enter_context((self._folder / f"{service}.log").open("w+"))
        process = subprocess.Popen(
            [*PROGRAMS[command[0]], *command[1:]], env=self._variables(service), stdout=output, stderr=subprocess.STDOUT
        )
        self._running.callback(self._stop, process)
        self._processes[service] = process
        return process

    def healthy(self, service):
        """True if the image's health check succeeds."""
        check = stages()[service].health_check
        environment = self._variables(service)
        here = {":7860": f":{environment['LATHE_PORT']}", "$HOSTNAME": socket.gethostname()}
        for written, stands_for in here.items():
            check = [word.replace(written, stands_for) for word in check]
        command = [*PROGRAMS[check[0]], *check[1:]]
        return subprocess.run(command, env=environment, capture_output=True, check=False).returncode == 0

    def printed(self, service):
        return (self._folder / f"{service}.log").read_text()

    def says(self, service, words):
        """Waits until a service prints these words."""
        process = self._processes[service]

        def found():
            has_ended = process.poll() is not None
            printed = self.printed(service)
            assert words in printed or not has_ended, printed
            return words in printed

        eventually(found)

    def _stop(self, process):
        process.kill()
        process.wait()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def test_after_migrate_web_and_worker_become_healthy_and_stop_on_sigterm(containers, postgresql):
    assert ended(containers.start("migrate")) == 0, containers.printed("migrate")
    with psycopg.connect(postgresql) as connection:
        tables = {row[0] for row in connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")}
    assert tables >= {"run", "metric", "alembic_version"}

    web, worker = containers.start("web"), containers.start("worker")
    containers.says("worker", " ready.")
    eventually(lambda: containers.healthy("worker"), every=1)
    eventually(lambda: web.poll() is not None or containers.healthy("web"), every=1)
    assert web.poll() is None, containers.printed("web")

    web.terminate()
    worker.terminate()
    assert ended(web) in (0, -signal.SIGTERM), containers.printed("web")
    assert ended(worker) == 0, containers.printed("worker")
