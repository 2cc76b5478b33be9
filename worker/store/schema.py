"""The version of the database's tables: a newer one is refused, and SQLite's file is copied before it is migrated."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

from sqlalchemy import Dialect

from training.errors import UserError
from training.files import whole_file
from worker import private_folder
from worker.settings import ROOT

MIGRATIONS = ROOT / "migrations"


class NewerDatabase(UserError):  # noqa: N818
    """A newer version of Lathe has changed the tables: this one would read and write them wrongly."""

    status = 503


@cache
def revisions() -> list[str]:
    """The versions of the tables that this version of Lathe knows, the latest last."""
    return sorted(path.name.partition("_")[0] for path in (MIGRATIONS / "versions").glob("[0-9]*.py"))


def checked(dialect: Dialect) -> Callable[[Any, Any], None]:
    """A listener to new connections of the dialect's driver.

    Raises:
        NewerDatabase: this version does not know the tables' version.
    """

    def check(connection: Any, _: Any) -> None:
        found = _revision(connection, dialect.loaded_dbapi.Error)
        if found is not None and found not in revisions():
            connection.close()
            message = f"was changed by a newer version of Lathe; this version knows its tables up to {revisions()[-1]}."
            fix = "Install the newer version again, or go back to the copy from before the update (docs/deploy.md)."
            raise NewerDatabase("database", found, message, fix)

    return check


def copy_before_migration(file: Path) -> Path | None:
    """Copies a SQLite database whose tables are of an earlier version, as FILE.VERSION; None if there is nothing to migrate.

    Raises:
        sqlite3.Error, OSError: it cannot be copied, such as on a full disk; no copy is left then.
    """
    with closing(sqlite3.connect(file)) as source:
        found = _revision(source, sqlite3.Error)
        if found in (None, revisions()[-1]):
            return None
        copy = file.with_name(f"{file.name}.{found}")
        with whole_file(copy) as part:
            private_folder.create(part)
            with closing(sqlite3.connect(part)) as target:
                source.backup(target)
    return copy


def _revision(connection: Any, error: type[Exception]) -> str | None:
    """The version of the tables; None without tables."""
    cursor = connection.cursor()
    try:
        cursor.execute("SELECT version_num FROM alembic_version")
        row = cursor.fetchone()
        return None if row is None else str(row[0])
    except error:  # no such table; what else is wrong shows at the first statement
        return None
    finally:
        cursor.close()
        connection.rollback()
