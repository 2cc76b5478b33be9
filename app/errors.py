"""Errors that several packages of app raise or explain."""

import sqlite3
from typing import Any

from training.errors import Problem, UserError


class CannotStart(UserError):  # noqa: N818
    """Lathe cannot start."""


def database_problem(error: Exception) -> Problem | None:
    """What is wrong with the database, for an error of SQLAlchemy; None for other errors."""
    from sqlalchemy.exc import DBAPIError, InterfaceError, InternalError, OperationalError, ProgrammingError

    if not isinstance(error, DBAPIError):
        return None
    reason = str(error.orig).strip().splitlines()[0] if error.orig else str(error)
    if _table_missing(error, reason):
        return Problem("database", None, "lacks tables of this version.", "Run `python -m worker.store.database`.")
    if isinstance(error, OperationalError) and "locked" in reason:
        return Problem("database", None, "is locked by another program.", "Try again, or stop that program.")
    if isinstance(error, (OperationalError, InterfaceError, InternalError, ProgrammingError)):
        fix = "Check LATHE_DATABASE_URL, and that the database server is running."
        return Problem("database", None, f"is unreachable: {reason}.", fix)
    return Problem("database", None, f"cannot be read: {reason}.", "Check LATHE_DATA_DIR and LATHE_DATABASE_URL.")


def _table_missing(error: Any, reason: str) -> bool:
    if isinstance(error.orig, sqlite3.OperationalError):
        return reason.startswith(("no such table", "no such column"))
    return getattr(error.orig, "sqlstate", None) in ("42P01", "42703")
