"""The database's kind, version, size and latency."""

import time
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy
from sqlalchemy import Connection

from worker.store import database


@dataclass(frozen=True)
class DatabaseFacts:
    """What the page System shows of the database. `address` is without the password."""

    kind: str
    version: str
    address: str
    bytes: int
    latency_ms: float
    """Of a query without tables, on an open connection."""


def facts() -> DatabaseFacts:
    """The facts of the configured database.

    Raises:
        OperationalError: it is unreachable.
    """
    engine = database.engine()
    sqlite = engine.dialect.name == "sqlite"
    with engine.connect() as connection:
        version = connection.execute(sqlalchemy.text("SELECT sqlite_version()" if sqlite else "SHOW server_version"))
        version_text = str(version.scalar_one()).split(" ")[0]
        began = time.perf_counter()
        connection.execute(sqlalchemy.text("SELECT 1")).scalar_one()
        latency = (time.perf_counter() - began) * 1000
        size = _files() if sqlite else _server_size(connection)
    address = str(engine.url.database) if sqlite else engine.url.set(username=None, password=None).render_as_string()
    return DatabaseFacts("SQLite" if sqlite else "PostgreSQL", version_text, address, size, latency)


def _files() -> int:
    """Bytes of the database's file and its write-ahead log."""
    file = Path(database.engine().url.database or "")
    files = (file.with_name(f"{file.name}{ending}") for ending in ("", "-wal", "-shm"))
    return sum(path.stat().st_size for path in files if path.exists())


def _server_size(connection: Connection) -> int:
    return int(connection.execute(sqlalchemy.text("SELECT pg_database_size(current_database())")).scalar_one())
