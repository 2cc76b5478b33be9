"""Connections, transactions and migrations, for SQLite and PostgreSQL alike.

`read()` and `write()` give a session. On SQLite `write()` begins with BEGIN IMMEDIATE: a transaction that reads first
and writes later fails at once when another has written in between, however long the busy timeout is.
"""

import fcntl
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import sqlalchemy
from sqlalchemy import Connection, Engine, event, inspect, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.pool import Pool
from sqlalchemy.sql.functions import FunctionElement
from sqlmodel import Session, SQLModel, select

from training.run_folder.events import finite
from worker import private_folder
from worker.settings import Settings, get_settings
from worker.store import schema, sight
from worker.store.tables.row import from_json

if TYPE_CHECKING:
    from alembic.config import Config
from sqlalchemy.exc import InterfaceError, InternalError, OperationalError

T = TypeVar("T", bound=SQLModel)

UNREACHABLE = (OperationalError, InterfaceError, InternalError)
_FULL = ("database or disk is full", "No space left on device")

BUSY_TIMEOUT_MS = 15_000
_POOL = {"pool_size": 10, "max_overflow": 50}
"""More connections than the web server has threads (40): a thread with a session may need a second one, which sees everything."""
_MIGRATION_LOCK = 0x1A7E  # an arbitrary key for PostgreSQL's advisory lock during migrations

_engines: dict[str, Engine] = {}
_failing: dict[str, float] = {}
_inherited: list[Pool] = []


def engine() -> Engine:
    """The engine of the configured database; one per URL and process."""
    url = get_settings().sqlalchemy_url
    # If two threads create it at once, one engine stays; the other has not connected.
    return _engines.get(url) or _engines.setdefault(url, _create(url))


def dispose() -> None:
    """Closes every connection of this process."""
    while _engines:
        _engines.popitem()[1].dispose()


@contextmanager
def read() -> Iterator[Session]:
    """A session for reading what the user sees (worker/store/sight.py); what it loaded stays usable afterwards."""
    with _noticing(), Session(engine(), expire_on_commit=False, info={"user": sight.user()}) as session:
        yield session


@contextmanager
def read_everything() -> Iterator[Session]:
    """A session for reading what no user's view may limit: what is decided for all, such as which files are needed."""
    with sight.everything(), read() as session:
        yield session


@contextmanager
def write() -> Iterator[Session]:
    """A session whose changes are committed at the end, or rolled back on an error; what it loaded stays usable."""
    immediate = engine().execution_options(sqlite_begin="IMMEDIATE")
    with _noticing(), Session(immediate, expire_on_commit=False) as session, session.begin():
        yield session


def failing_since() -> float | None:
    """When this process first failed to reach the database, in seconds since the epoch; None if the latest session worked."""
    return _failing.get(get_settings().sqlalchemy_url)


@contextmanager
def _noticing() -> Iterator[None]:
    url = get_settings().sqlalchemy_url
    try:
        yield
    except UNREACHABLE:
        _failing.setdefault(url, time.time())
        raise
    _failing.pop(url, None)


def has_tables() -> bool:
    """True if the database exists and has Lathe's tables; creates nothing."""
    found = engine()
    if found.dialect.name == "sqlite" and not Path(found.url.database or "").is_file():
        return False  # a connection would create it, in a folder that may not exist either
    return inspect(found).has_table("alembic_version")


def after_commit(session: Session, action: Callable[[], None]) -> None:
    """Calls `action` after `session` commits; not after a rollback."""

    def committed(_: Session) -> None:
        if not session.in_nested_transaction():
            action()

    event.listen(session, "after_commit", committed)


class Clock(FunctionElement[float]):
    """The database's clock, in seconds since the epoch; the same for all processes and machines."""

    type = sqlalchemy.Float()
    inherit_cache = True


@compiles(Clock, "sqlite")
def _sqlite_clock(*_: Any, **__: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(Clock, "postgresql")
def _postgresql_clock(*_: Any, **__: Any) -> str:
    return "CAST(extract(epoch FROM clock_timestamp()) AS double precision)"


def clock() -> Clock:
    """An SQL expression of the database's clock. Leases use it, so that the clocks of machines do not matter."""
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
    """Creates or updates the tables. Safe to call from several processes at once; fast if there is nothing to do.

    Raises:
        SettingsError: the data folder cannot be created.
        NewerDatabase: a newer version of Lathe has changed the tables.
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
    config.set_main_option("script_location", str(schema.MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def _close_to_others(settings: Settings) -> None:
    """Makes the data folder private; SQLite copies the database file's permissions to its other files."""
    if engine().dialect.name == "sqlite" and (file := engine().url.database):
        private_folder.create(Path(file))
    private_folder.close(settings)


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
        # Stored in the file: readers and the writer do not block each other.
        driver.execute("PRAGMA journal_mode=WAL")
        # Alembic changes a table by copying and dropping it; foreign keys would empty the tables that refer to it.
        driver.execute("PRAGMA foreign_keys=OFF")
        try:
            with connection.begin():
                schema.copy_before_migration(Path(connection.engine.url.database or ""))
                yield connection
        finally:
            driver.execute("PRAGMA foreign_keys=ON")


def _create(url: str) -> Engine:
    if not url.startswith("sqlite"):
        # If the server's machine fails, a query would wait for two hours without these.
        timeouts = {"connect_timeout": 5, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
        arguments = {"application_name": "lathe", "tcp_user_timeout": 25_000} | timeouts
        created = sqlalchemy.create_engine(
            url,
            pool_pre_ping=True,
            json_serializer=to_json,
            json_deserializer=from_json,
            connect_args=arguments,
            **_POOL,
        )
        event.listen(created, "connect", schema.checked(created.dialect))
        return created
    created = sqlalchemy.create_engine(url, json_serializer=to_json, json_deserializer=from_json, **_POOL)
    event.listen(created, "connect", _sqlite_connect)
    event.listen(created, "connect", schema.checked(created.dialect))
    event.listen(created, "begin", _sqlite_begin)
    return created


def _sqlite_connect(connection: Any, _: Any) -> None:
    connection.text_factory = partial(str, encoding="utf-8", errors="replace")  # one wrong byte must not end a query
    connection.create_function("lathe_lower", 1, _lower, deterministic=True)  # see json_parts.Lowered
    connection.isolation_level = None  # the driver must not begin transactions; _sqlite_begin does
    for pragma in (f"busy_timeout={BUSY_TIMEOUT_MS}", "synchronous=NORMAL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")


def _lower(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "replace").lower()


def _sqlite_begin(connection: Connection) -> None:
    connection.exec_driver_sql(f"BEGIN {connection.get_execution_options().get('sqlite_begin', 'DEFERRED')}")


def existing(session: Session, table: type[T], key: str, missing: Exception) -> T:
    """The row with this key. Raises missing if there is none."""
    row = session.get(table, key)
    if row is None:
        raise missing
    return row


def change(session: Session, table: type[T], *condition: Any, **values: Any) -> T | None:
    """Runs one conditional UPDATE; returns the new row, or None if the condition does not hold."""
    return next(iter(change_all(session, table, *condition, **values)), None)


def change_all(session: Session, table: type[T], *condition: Any, **values: Any) -> list[T]:
    """As `change`, for all rows for which the condition holds."""
    session.flush()
    statement = update(table).where(*condition).values(**values).returning(table)
    options = {"synchronize_session": False, "populate_existing": True}
    return list(session.exec(statement, execution_options=options).scalars())


def to_json(value: Any) -> str:
    """JSON for both databases: NaN and infinities become null."""
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError:
        return json.dumps(finite(value), allow_nan=False)


def _close_idle() -> None:
    """Before a fork: SQLite connections must not cross it. Do not fork while a session is open."""
    for held in _engines.values():
        held.dispose()


def _forget_inherited() -> None:
    """In a forked child: leaves the parent's connections unused; closing them would send data on them."""
    _inherited.extend(held.pool for held in _engines.values())
    _engines.clear()


os.register_at_fork(before=_close_idle, after_in_child=_forget_inherited)


def says_full(error: Exception) -> bool:
    """True if the database could not write because its disk is full (SQLite's SQLITE_FULL, PostgreSQL's 53100)."""
    state = getattr(getattr(error, "orig", None), "sqlstate", None)
    return state == "53100" or any(words in str(error) for words in _FULL)


if __name__ == "__main__":
    try:
        migrate()
    except schema.NewerDatabase as newer:
        sys.exit(str(newer))
    dispose()
