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

from app.local.services import Service, python_service
from benchmarks import slurm_cluster
from benchmarks.chaos.supervisor import DEVICE
from benchmarks.chaos.surroundings import SlowDisk, hub
from benchmarks.slurm_cluster import SlurmCluster
from tests.stand_in_hub import Received
from training.tokens import store
from worker.machine import processes as process
from worker.queue import local_broker
from worker.queue.tasks import worker_command
from worker.settings import PREFIX, ROOT, get_settings
from worker.store import database

POSTGRES_URL = "postgresql://postgres@127.0.0.1:5432/postgres"
LEASE_SECONDS = 10.0
# Each fault can cost an attempt, but the limit is for runs that fail without faults. A run that never finishes still
# counts as lost at the end.
MAX_ATTEMPTS = 100_000
_STOP_SECONDS = 30.0
_ANSWER_SECONDS = 10.0


class Installation:
    """The services of an installation; restarts those that end, like a service manager."""

    def __init__(
        self, folder: Path, queue_kind: str, workers: int, hub: Received, cluster: SlurmCluster | None = None
    ) -> None:
        self.hub, self.disk = hub, SlowDisk(folder)
        os.environ |= self.disk.environment
        self.port, self.cluster = _free_port(), cluster
        os.environ |= {"LATHE_DATA_DIR": str(folder / "data"), "LATHE_PORT": str(self.port)}
        self._redis_port = _free_port() if queue_kind == "redis" else None
        if self._redis_port:
            os.environ["LATHE_BROKER_URL"] = f"redis://127.0.0.1:{self._redis_port}/0"
        get_settings.cache_clear()
        self.settings = get_settings()
        database.migrate()
        logs = self.settings.data_dir / "logs"
        self.broker = self._redis(folder / "redis") if self._redis_port else self._valkey()
        self.web = python_service("web", [sys.executable, "-m", "app.server"], logs / "web.log", {})
        self.workers = [_worker(number, logs) for number in range(workers)]

    @property
    def broker_url(self) -> str:
        """The queue server's URL in the format of the redis package."""
        return self.settings.celery_broker_url.replace("redis+socket://", "unix://")

    @property
    def services(self) -> list[Service]:
        return [self.broker, *self.workers, self.web]

    def start(self) -> None:
        """Starts all services and waits until the web server answers.

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
        """Restarts services that have ended."""
        if self.cluster is not None:
            self.cluster.keep_running()
        for service in self.services:
            if service.ended() is not None:
                with contextlib.suppress(local_broker.BrokerError):  # on a loaded machine; the next call retries
                    service.start()

    def stop(self) -> None:
        """Ends all services in order, as `lathe up` does."""
        for service in (*self.workers, self.web, self.broker):
            service.stop(_STOP_SECONDS)

    def processes(self) -> list[psutil.Process]:
        """All processes of this installation except the queue server."""
        return [*process.marked("LATHE_DATA_DIR", str(self.settings.data_dir)), *self.trainers()]

    def trainers(self) -> list[psutil.Process]:
        """The launchers and ranks of all runs."""
        return process.marked(store.VARIABLE, str(self.settings.tokens_dir))

    def end_the_rest(self) -> None:
        """Ends the processes that continue after the services: supervisors and their training processes."""
        while remaining := self.processes():
            process.end(remaining)
        database.dispose()

    def answers(self) -> bool:
        """Returns True if the web server answers."""
        return self.ask("GET", "/healthz")[0] == http.client.OK

    def submit(self, config: dict[str, Any]) -> str | None:
        """Submits a run through the web server and returns its id, or None if that or the database does not answer.

        Raises:
            ValueError: the server refused the run.
        """
        status, answer = self.ask("POST", "/api/runs", config)
        if status == http.client.CREATED:
            return str(answer["id"])
        if 0 < status < http.client.INTERNAL_SERVER_ERROR:
            raise ValueError(f"a run was refused: {status}, {answer}")
        return None

    def empty_queue(self) -> bool:
        """Runs FLUSHALL on this installation's queue server; False if it does not answer."""
        once = {"socket_timeout": 2.0, "socket_connect_timeout": 2.0}
        with contextlib.suppress(redis.RedisError, OSError), redis.Redis.from_url(self.broker_url, **once) as client:
            client.flushall()
            return True
        return False

    def ask(self, method: str, path: str, body: Any = None, seconds: float = _ANSWER_SECONDS) -> tuple[int, Any]:
        """Sends the web server a request. Returns the status and the JSON of its answer; 0 and None if there is no answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException, ValueError):
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        return 0, None

    def _valkey(self) -> Service:
        log = self.settings.data_dir / "broker" / "server.log"
        return Service("queue server", lambda: local_broker.start(self.settings), log)

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
def installation(
    database_kind: str, queue_kind: str, workers: int, *, engine: str = "local", keep: bool = False
) -> Iterator[Installation]:
    """A context that yields a running installation with its own database, and removes it afterwards. `keep` keeps the folder.

    With the engine slurm it has a cluster of its own, with two nodes.
    """
    folder = Path(tempfile.mkdtemp(prefix="lathe-chaos-"))
    for name in [name for name in os.environ if name.startswith(PREFIX) and name != "LATHE_TEST_POSTGRES_URL"]:
        del os.environ[name]
    seconds = {"LATHE_LEASE_SECONDS": str(LEASE_SECONDS), "LATHE_RENEW_SECONDS": "1"}
    os.environ |= seconds | {"LATHE_DEVICES": "cpu", "LATHE_MAX_ATTEMPTS": str(MAX_ATTEMPTS)}
    os.environ["LATHE_CHECK_TEMPLATES"] = "false"  # its limit of CPU time would refuse runs on a busy machine
    with contextlib.ExitStack() as stack:
        if not keep:
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
        if database_kind == "postgresql":
            os.environ["LATHE_DATABASE_URL"] = stack.enter_context(postgresql_database())
        cluster = None
        if engine == "slurm":
            cluster = stack.enter_context(_cluster(folder / "slurm"))
        created = Installation(folder, queue_kind, workers, stack.enter_context(hub()), cluster)
        stack.callback(created.end_the_rest)
        stack.callback(created.stop)
        created.start()
        yield created


@contextlib.contextmanager
def _cluster(folder: Path) -> Iterator[SlurmCluster]:
    if lacking := slurm_cluster.missing():
        fix = "Debian: apt-get install slurmctld slurmd slurm-client"
        raise SystemExit(f"--engine slurm needs Slurm: {', '.join(lacking)} missing. {fix}")
    with SlurmCluster(folder, node_timeout=10) as cluster:
        os.environ |= cluster.environment | {"LATHE_ENGINES": "slurm", "LATHE_SLURM_GRES": "cpu"}
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        yield cluster


@contextlib.contextmanager
def postgresql_database() -> Iterator[str]:
    """A context that yields the URL of a new database on the server LATHE_TEST_POSTGRES_URL, and drops it afterwards."""
    server = make_url(os.environ.get("LATHE_TEST_POSTGRES_URL", POSTGRES_URL)).set(drivername="postgresql")
    name = f"lathe_benchmark_{os.getpid()}_{secrets.token_hex(3)}"
    connect = server.render_as_string(hide_password=False)
    try:
        connection = psycopg.connect(connect, autocommit=True, connect_timeout=5)
    except psycopg.OperationalError as error:
        fix = "Start it, or set LATHE_TEST_POSTGRES_URL to another server."
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
    argv = ["benchmarks.chaos.worker_process" if word == "worker.queue.tasks" else word for word in worker_command()]
    name = f"worker{number}"
    argv += ["--hostname", f"{name}@%h"]
    return python_service(name, argv, logs / f"{name}.log", {DEVICE: f"slot{number}"})


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
