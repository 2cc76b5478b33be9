"""Making sure that there is a database before a command reads it."""

from pathlib import Path

import sqlalchemy

from worker import database


def ready() -> None:
    """Creates the tables where there are none yet. One that has tables is left alone: `lathe up` brings it up to date.

    Raises:
        SettingsError: the data folder cannot be made.
        OperationalError: the database does not answer.
    """
    if not _has_tables():
        database.migrate()


def _has_tables() -> bool:
    engine = database.engine()
    if engine.dialect.name == "sqlite" and not Path(engine.url.database or "").is_file():
        return False  # a connection would create it, in a folder that may not exist either
    return sqlalchemy.inspect(engine).has_table("alembic_version")
