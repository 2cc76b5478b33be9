"""The database as a file of SQLite, whichever engine it has: copied from a running one, and into an empty one."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from sqlalchemy import JSON, Connection, MetaData, Table, create_engine, func, insert, inspect, select, text
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError
from sqlmodel import SQLModel

from worker.store import database
from worker.store.tables.columns import ROW_ID
from worker.store.tables.row import from_json

Tell = Callable[[str], object]
_ROWS = 1000


def to_file(target: Path, tell: Tell) -> None:
    """Copies the database, as it is at one moment, into the new SQLite file `target`; writers do not wait.

    `tell` gets the name of each table that is being copied.
    """
    if database.engine().dialect.name == "sqlite":
        with (
            closing(sqlite3.connect(database.engine().url.database or "")) as source,
            closing(sqlite3.connect(target)) as copy,
        ):
            source.backup(copy)
        return
    with _file(target) as file:
        _migrate(file)
        one_moment = database.engine().execution_options(isolation_level="REPEATABLE READ")
        with one_moment.connect() as source, file.begin() as copy:
            _copy(source, copy, tell)


def update(file: Path, tables: str) -> None:
    """Updates the tables in a copy, which are those of version `tables`.

    Raises:
        ValueError: it is no such copy, or is damaged.
    """
    try:
        with _file(file) as engine:
            with engine.connect() as opened:
                found = opened.execute(text("SELECT version_num FROM alembic_version")).scalars().all()
                fault = opened.execute(text("PRAGMA quick_check(1)")).scalar()
            if found != [tables] or fault != "ok":
                raise ValueError("its database is damaged")
            _migrate(engine)
    except DBAPIError as error:
        raise ValueError(f"its database cannot be used: {error.orig}") from None


def from_file(source: Path, tell: Tell) -> None:
    """Copies the SQLite file `source`, whose tables are of this version, into the empty database, completely or not at all."""
    if database.engine().dialect.name == "sqlite":
        with (
            closing(sqlite3.connect(source)) as copy,
            closing(sqlite3.connect(database.engine().url.database or "")) as target,
        ):
            copy.backup(target)
        database.migrate()
        return
    database.migrate()
    with _file(source) as file, file.connect() as opened, database.engine().begin() as target:
        _copy(opened, target, tell)
        _count_on(target)


def has_rows() -> bool:
    """True if the database has runs, data sets, sweeps or accounts."""
    if not database.has_tables():
        return False
    with database.engine().connect() as connection:
        found = set(inspect(connection).get_table_names())
        kept = [SQLModel.metadata.tables[name] for name in ("run", "dataset", "sweep", "account") if name in found]
        return any(connection.execute(select(table).limit(1)).first() is not None for table in kept)


@contextmanager
def _file(path: Path) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{path}", json_serializer=database.to_json, json_deserializer=from_json)
    try:
        yield engine
    finally:
        engine.dispose()


def _migrate(file: Engine) -> None:
    from alembic import command

    with file.begin() as connection:
        command.upgrade(database.migration_config(connection), "head")


def _copy(source: Connection, target: Connection, tell: Tell) -> None:
    for declared in SQLModel.metadata.sorted_tables:  # those that others refer to come first
        table = _plain(declared)
        tell(table.name)
        rows = source.execution_options(yield_per=_ROWS).execute(select(table)).mappings()
        target.execute(table.delete())  # migrations add rows to some
        for some in rows.partitions():
            target.execute(insert(table), [dict(row) for row in some])


def _plain(declared: Table) -> Table:
    """The table, whose JSON columns keep the database's null as it is."""
    table = declared.to_metadata(MetaData())
    for column in table.columns:
        if isinstance(column.type, JSON) and column.nullable:
            column.type = JSON(none_as_null=True)
    return table


def _count_on(target: Connection) -> None:
    """Lets PostgreSQL count ids up from the copied ones."""
    for table in SQLModel.metadata.sorted_tables:
        if "id" in table.columns and table.columns["id"].type is ROW_ID:
            highest = target.execute(select(func.max(table.columns["id"]))).scalar()
            sequence = func.pg_get_serial_sequence(table.name, "id")
            target.execute(select(func.setval(sequence, (highest or 0) + 1, False)))
