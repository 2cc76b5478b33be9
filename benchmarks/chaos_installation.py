"""A Lathe installation in a temporary folder for benchmarks.chaos: web server, queue server, workers, database."""

import contextlib
import http.client
import json
import os
import secrets
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import psycopg
import redis
from psycopg import sql
from sqlalchemy.engine import make_url

from app.services import Service, python_service
from benchmarks.chaos_supervisor import DEVICE
from training import token_store
from worker import broker, database, process
from worker.settings import PREFIX, get_settings
from worker.tasks import worker_command

POSTGRES_URL = "postgresql://postgres@127.0.0.1:5432/postgres"
LEASE_SECONDS = 10.0
# Every fault may cost an attempt, and the cap is meant for runs that fail by themselves: those it would hide would still be
# under way at the end, and count as lost.
MAX_ATTEMPTS = 100_000
_STOP_SECONDS = 30.0
_ANSWER_SECONDS = 10.0


class Installation:
    """The services, which are started again whenever they end, as a service manager would do."""

    def __init__(self, folder: Path, queue_kind: str, workers: int) -> None:
        self.port = _free_port()
        os.environ |= {"LATHE_DATA_DIR": str(folder / "data"), "LATHE_PORT": str(self.port)}
        self._redis_port = _free_port() if queue_kind == "redis" else None
        if self._redis_port:
            os.environ["LATHE_BROKER_URL"] = f"redis://127.0.0.1:{self._redis_port}/0"
        get_settings.cache_clear()
        self.settings = get_settings()
        database.migrate()
        logs = self.settings.data_dir / "logs"
        self.broker = self._redis(folder / "redis") if self._redis_port else self._valkey()
        self.web = python_service("web", [sys.executable, "-m", "app.main"], logs / "web.log", {})
        self.workers = [_worker(number, logs) for number in range(workers)]

    @property
    def broker_url(self) -> str:
        """Of the queue server, as its own library reads it."""
        return self.settings.celery_broker_url.replace("redis+socket://", "unix://")

    @property
    def services(self) -> list[Service]:
        return [self.broker, *self.workers, self.web]

    def start(self) -> None:
        """Starts all of it and waits until the web server answers.

        Raises:
            TimeoutError: it does not.
        """
        for service in self.services:
            service.start()
        deadline = time.monotonic() + 180
        while not self.answers():
            if time.monotonic() > deadline:
                raise TimeoutError(self.web.explain("The web server does not answer."))
            time.sleep(0.2)

    def keep_running(self) -> None:
        """Starts what has ended."""
        for service in self.services:
            if service.ended() is not None:
                with contextlib.suppress(broker.BrokerError):  # on a loaded machine: tried again in a moment
                    service.start()

    def stop(self) -> None:
        """Ends all of it in order, as `lathe up` does."""
        for service in (*self.workers, self.web, self.broker):
            service.stop(_STOP_SECONDS)

    def processes(self) -> list[psutil.Process]:
        """Every process of ours but the queue server, wherever it hangs in the tree."""
        return [*process.marked("LATHE_DATA_DIR", str(self.settings.data_dir)), *self.trainers()]

    def trainers(self) -> list[psutil.Process]:
        """The launchers and ranks of all runs."""
        return process.marked(token_store.VARIABLE, str(self.settings.tokens_dir))

    def end_the_rest(self) -> None:
        """Ends what outlives the services: supervisors, and what trains under them."""
        while left := self.processes():
            process.end(left)
        database.dispose()

    def answers(self) -> bool:
        """Whether the web server answers."""
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
            return self._ask("GET", "/healthz")[0] == http.client.OK
        return False

    def submit(self, config: dict[str, Any]) -> str | None:
        """Submits a run through the web server: the run's id, or None where that or the database does not answer.

        Raises:
            ValueError: the server answered, and refused it.
        """
        with contextlib.suppress(OSError, http.client.HTTPException):
            status, answer = self._ask("POST", "/api/runs", config)
            if status == http.client.CREATED:
                return str(json.loads(answer)["id"])
            if status < http.client.INTERNAL_SERVER_ERROR:
                raise ValueError(f"a run was refused: {status}, {answer.decode()}")
        return None

    def empty_queue(self) -> bool:
        """FLUSHALL on the queue server, which is our own; False where it does not answer."""
        once = {"socket_timeout": 2.0, "socket_connect_timeout": 2.0}
        with contextlib.suppress(redis.RedisError, OSError), redis.Redis.from_url(self.broker_url, **once) as client:
            client.flushall()
            return True
        return False

    def _ask(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_ANSWER_SECONDS)
        with contextlib.closing(connection):
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()

    def _valkey(self) -> Service:
        log = self.settings.data_dir / "broker" / "server.log"
        return Service("queue server", lambda: broker.start(self.settings), log)

    def _redis(self, folder: Path) -> Service:
        program = shutil.which("redis-server")
        if program is None:
            raise SystemExit("--broker redis needs redis-server on the PATH (Debian: apt-get install redis-server).")
        folder.mkdir()
        options = ["--port", str(self._redis_port), "--bind", "127.0.0.1", "--dir", str(folder), "--appendonly", "yes"]
        argv = [program, *options, "--save", ""]
        log = folder / "server.log"
        return Service("queue server", lambda: process.start_child(argv, output=log, cwd=folder), log)


@contextlib.contextmanager
def installation(database_kind: str, queue_kind: str, workers: int, *, keep: bool = False) -> Iterator[Installation]:
    """An installation that runs, with a database of its own; all of it is gone afterwards, but the folder with `keep`."""
    folder = Path(tempfile.mkdtemp(prefix="lathe-chaos-"))
    for name in [name for name in os.environ if name.startswith(PREFIX) and name != "LATHE_TEST_POSTGRES_URL"]:
        del os.environ[name]
    seconds = {"LATHE_LEASE_SECONDS": str(LEASE_SECONDS), "LATHE_RENEW_SECONDS": "1"}
    os.environ |= seconds | {"LATHE_DEVICES": "cpu", "LATHE_MAX_ATTEMPTS": str(MAX_ATTEMPTS)}
    with contextlib.ExitStack() as stack:
        if not keep:
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
        if database_kind == "postgresql":
            os.environ["LATHE_DATABASE_URL"] = stack.enter_context(_postgresql_database())
        made = Installation(folder, queue_kind, workers)
        stack.callback(made.end_the_rest)
        stack.callback(made.stop)
        made.start()
        yield made


@contextlib.contextmanager
def _postgresql_database() -> Iterator[str]:
    """The URL of a database that is dropped afterwards, on the server that LATHE_TEST_POSTGRES_URL names."""
    server = make_url(os.environ.get("LATHE_TEST_POSTGRES_URL", POSTGRES_URL)).set(drivername="postgresql")
    name = f"lathe_chaos_{os.getpid()}_{secrets.token_hex(3)}"
    connect = server.render_as_string(hide_password=False)
    try:
        connection = psycopg.connect(connect, autocommit=True, connect_timeout=5)
    except psycopg.OperationalError as error:
        fix = "Start it, or name another one in LATHE_TEST_POSTGRES_URL."
        raise SystemExit(
            f"--database postgresql: no server answers at {server.host}:{server.port} ({error}). {fix}"
        ) from None
    with contextlib.closing(connection) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            yield server.set(database=name).render_as_string(hide_password=False)
        finally:
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def _worker(number: int, logs: Path) -> Service:
    argv = ["benchmarks.chaos_worker" if word == "worker.tasks" else word for word in worker_command()]
    name = f"worker{number}"
    argv += ["--hostname", f"{name}@%h"]
    return python_service(name, argv, logs / f"{name}.log", {DEVICE: f"slot{number}"})


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
