"""Connections, transactions and migrations, for SQLite and PostgreSQL alike.

`read()` and `write()` give a session. On SQLite `write()` begins with BEGIN IMMEDIATE: a transaction that reads first
and writes later fails at once when another has written in between, however long the busy timeout is.
"""

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy
from sqlalchemy import Connection, Engine, event, inspect
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.pool import Pool
from sqlalchemy.sql.functions import FunctionElement
from sqlmodel import Session, SQLModel, select

from training.events import finite
from worker import private
from worker.settings import ROOT, Settings, get_settings

if TYPE_CHECKING:
    from alembic.config import Config

MIGRATIONS = ROOT / "migrations"
BUSY_TIMEOUT_MS = 15_000
_MIGRATION_LOCK = 0x1A7E  # any number of ours: PostgreSQL's advisory lock while migrating

_engines: dict[str, Engine] = {}
_inherited: list[Pool] = []


def engine() -> Engine:
    """The engine of the configured database; one per URL and process."""
    url = get_settings().sqlalchemy_url
    # Where two threads come first at once, one engine stays; the other has not connected.
    return _engines.get(url) or _engines.setdefault(url, _create(url))


def dispose() -> None:
    """Closes every connection of this process."""
    while _engines:
        _engines.popitem()[1].dispose()


@contextmanager
def read() -> Iterator[Session]:
    """A session for reading; what it loaded stays usable afterwards."""
    with Session(engine(), expire_on_commit=False) as session:
        yield session


@contextmanager
def write() -> Iterator[Session]:
    """A session whose changes are committed at the end, or rolled back on an error; what it loaded stays usable."""
    immediate = engine().execution_options(sqlite_begin="IMMEDIATE")
    with Session(immediate, expire_on_commit=False) as session, session.begin():
        yield session


def has_tables() -> bool:
    """Whether there is a database with Lathe's tables; looking makes none."""
    found = engine()
    if found.dialect.name == "sqlite" and not Path(found.url.database or "").is_file():
        return False  # a connection would create it, in a folder that may not exist either
    return inspect(found).has_table("alembic_version")


def after_commit(session: Session, action: Callable[[], None]) -> None:
    """Calls `action` when `session` has committed, and not at all where it is rolled back."""

    def committed(_: Session) -> None:
        if not session.in_nested_transaction():
            action()

    event.listen(session, "after_commit", committed)


class Clock(FunctionElement[float]):
    """The database's own clock, in seconds since the epoch; the same for every process on every machine."""

    type = sqlalchemy.Float()
    inherit_cache = True


@compiles(Clock, "sqlite")
def _sqlite_clock(*_: Any, **__: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(Clock, "postgresql")
def _postgresql_clock(*_: Any, **__: Any) -> str:
    return "CAST(extract(epoch FROM clock_timestamp()) AS double precision)"


def clock() -> Clock:
    """An SQL expression of the database's clock. Leases are decided by it, so that no machine's clock can."""
    return Clock()


def now(*, session: Session) -> float:
    """Seconds since the epoch, by the database's clock."""
    return session.exec(select(clock())).one()


def insert(session: Session, table: type[SQLModel]) -> postgresql.Insert | sqlite.Insert:
    """An INSERT that can say ON CONFLICT, in the dialect of the session's database."""
    if session.get_bind().dialect.name == "sqlite":
        return sqlite.insert(table)
    return postgresql.insert(table)


def migrate() -> None:
    """Creates or updates the tables. Safe to call from several processes at once; quick where nothing is to do.

    Raises:
        SettingsError: the data folder cannot be made.
    """
    from alembic import command  # takes 0.2 s, and only this needs it

    settings = get_settings()
    settings.make_folders()
    _close_to_others(settings)
    with migrating() as connection:
        command.upgrade(migration_config(connection), "head")


def migration_config(connection: Connection) -> "Config":
    """Alembic's configuration for the migrations beside this package, run on `connection`."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def _close_to_others(settings: Settings) -> None:
    """Closes the data folder; SQLite gives the files beside its own the rights that this one has."""
    if engine().dialect.name == "sqlite" and (file := engine().url.database):
        private.create(Path(file))
    private.close(settings)


@contextmanager
def migrating() -> Iterator[Connection]:
    """A connection to change tables on: one process at a time, all or nothing."""
    if engine().dialect.name == "sqlite":
        with _sqlite_migrating() as connection:
            yield connection
    else:
        with engine().begin() as connection:
            connection.execute(sqlalchemy.text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
            yield connection


@contextmanager
def _sqlite_migrating() -> Iterator[Connection]:
    immediate = engine().execution_options(sqlite_begin="IMMEDIATE")
    with (get_settings().data_dir / "migrate.lock").open("w") as lock, immediate.connect() as connection:
        fcntl.flock(lock, fcntl.LOCK_EX)
        driver: Any = connection.connection.dbapi_connection
        # A property of the file from then on: readers and the writer do not wait for each other.
        driver.execute("PRAGMA journal_mode=WAL")
        # A table is changed by copying and dropping it; foreign keys would empty the tables that refer to it.
        driver.execute("PRAGMA foreign_keys=OFF")
        try:
            with connection.begin():
                yield connection
        finally:
            driver.execute("PRAGMA foreign_keys=ON")


def _create(url: str) -> Engine:
    if not url.startswith("sqlite"):
        # A server whose machine is gone says nothing: without these a query would wait for two hours.
        patience = {"connect_timeout": 5, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
        arguments = {"application_name": "lathe", "tcp_user_timeout": 25_000} | patience
        return sqlalchemy.create_engine(url, pool_pre_ping=True, json_serializer=to_json, connect_args=arguments)
    created = sqlalchemy.create_engine(url, pool_size=10, max_overflow=50, json_serializer=to_json)
    event.listen(created, "connect", _sqlite_connect)
    event.listen(created, "begin", _sqlite_begin)
    return created


def _sqlite_connect(connection: Any, _: Any) -> None:
    connection.isolation_level = None  # the driver begins no transaction by itself; _sqlite_begin does
    for pragma in (f"busy_timeout={BUSY_TIMEOUT_MS}", "synchronous=NORMAL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")


def _sqlite_begin(connection: Connection) -> None:
    connection.exec_driver_sql(f"BEGIN {connection.get_execution_options().get('sqlite_begin', 'DEFERRED')}")


def to_json(value: Any) -> str:
    """JSON that both databases take: NaN and infinities, which it does not have, become null."""
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError:
        return json.dumps(finite(value), allow_nan=False)


def _close_idle() -> None:
    """Before a fork: SQLite cannot be carried across one. Do not fork while a session is open."""
    for held in _engines.values():
        held.dispose()


def _forget_inherited() -> None:
    """In a forked child: the parent's connections stay the parent's. Kept unused, since closing would speak on them."""
    _inherited.extend(held.pool for held in _engines.values())
    _engines.clear()


os.register_at_fork(before=_close_idle, after_in_child=_forget_inherited)


if __name__ == "__main__":
    migrate()
    dispose()
