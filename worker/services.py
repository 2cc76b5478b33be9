"""The database and the broker: kind, version, size and latency, or why they are unreachable."""

import time
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy
from kombu.exceptions import OperationalError
from redis import Redis, RedisError
from sqlalchemy import Connection

from training.redaction import one_line, redact
from worker import celery_app
from worker.settings import get_settings
from worker.store import database

_MISSING = "Start it with `lathe up`, or set LATHE_BROKER_URL to a running Redis or Valkey server."
_CONFIGURED = (
    "Start that server, or correct LATHE_BROKER_URL. Runs stay queued; workers look for them every few seconds."
)


_SERVER_FIX = (
    "Start that server, or correct LATHE_DATABASE_URL. Training continues until the leases of the runs could expire; then it ends, "
    "and the runs are resumed when the database answers."
)
_FILE_FIX = "Check that its disk has space, and that Lathe's user may read and write the file and its folder."


@dataclass(frozen=True)
class DatabaseFacts:
    """What the page System shows of the database. `address` is without the password."""

    kind: str
    version: str
    address: str
    bytes: int
    latency_ms: float
    """Of a query without tables, on an open connection."""


def database_facts() -> DatabaseFacts:
    """The facts of the configured database. Raises OperationalError if it is unreachable."""
    sqlite = _is_sqlite()
    with database.engine().connect() as connection:
        version = connection.execute(sqlalchemy.text("SELECT sqlite_version()" if sqlite else "SHOW server_version"))
        version_text = str(version.scalar_one()).split(" ")[0]
        began = time.perf_counter()
        connection.execute(sqlalchemy.text("SELECT 1")).scalar_one()
        latency = (time.perf_counter() - began) * 1000
        size = _files() if sqlite else _server_size(connection)
    return DatabaseFacts(_kind(), version_text, _address(), size, latency)


@dataclass(frozen=True)
class DatabaseTrouble:
    """Why the database is unreachable; `since` is when this process noticed it, in seconds since the epoch."""

    kind: str
    address: str
    since: float | None
    problem: str
    fix: str


def database_trouble(error: Exception) -> DatabaseTrouble:
    """What is known of the configured database without reaching it; `error` is one of UNREACHABLE."""
    problem = one_line(redact(str(getattr(error, "orig", None) or error)))
    fix = _FILE_FIX if _is_sqlite() else _SERVER_FIX
    return DatabaseTrouble(_kind(), _address(), database.failing_since(), problem, fix)


def _is_sqlite() -> bool:
    return database.engine().dialect.name == "sqlite"


def _kind() -> str:
    return "SQLite" if _is_sqlite() else "PostgreSQL"


def _address() -> str:
    """The file of the database, or the server's address without user and password."""
    url = database.engine().url
    return str(url.database) if _is_sqlite() else url.set(username=None, password=None).render_as_string()


def _files() -> int:
    """Bytes of the database's file and its write-ahead log."""
    file = Path(database.engine().url.database or "")
    files = (file.with_name(f"{file.name}{ending}") for ending in ("", "-wal", "-shm"))
    return sum(path.stat().st_size for path in files if path.exists())


def _server_size(connection: Connection) -> int:
    return int(connection.execute(sqlalchemy.text("SELECT pg_database_size(current_database())")).scalar_one())


@dataclass(frozen=True)
class Broker:
    """What the page System shows of the broker. `address` is without the password; `problem` and `fix` if it is unreachable."""

    kind: str
    version: str
    address: str
    embedded: bool
    reachable: bool
    waiting: int | None
    """Messages that no worker has received yet."""
    problem: str = ""
    fix: str = ""


def broker_state() -> Broker:
    """The broker's state; takes about a second if it is unreachable."""
    settings = get_settings()
    embedded = not settings.broker_url
    with celery_app.quick_app().connection_for_write() as connection:
        address = connection.as_uri()
        try:
            client: Redis = connection.default_channel.client
            info = client.info("server")
            waiting = int(client.llen(celery_app.NAME))
        except (OperationalError, RedisError, OSError) as error:
            fix = _MISSING if embedded else _CONFIGURED
            return Broker("Valkey" if embedded else "Redis", "", address, embedded, False, None, str(error), fix)
    valkey = "valkey_version" in info
    version = str(info["valkey_version" if valkey else "redis_version"])
    return Broker("Valkey" if valkey else "Redis", version, address, embedded, True, waiting)
