"""The command line's one boundary: what a person can mend becomes a message and exit code 1, the rest a traceback."""

import json
import sqlite3
from typing import TYPE_CHECKING, Any, NoReturn

import click

if TYPE_CHECKING:
    from training.failure import DataError

Report = dict[str, Any]
"""One thing that is wrong: field, value, message and fix, as printed by --json."""


class CommandError(Exception):
    """Something a person asked for that cannot be done; `message` says what is wrong and `fix` what to do."""

    def __init__(self, message: str, fix: str = "", *, field: str | None = None, value: Any = None) -> None:
        super().__init__(message)
        self.report: Report = {"field": field, "value": value, "message": message, "fix": fix}


class Command(click.Command):
    """A command that tells its errors on stderr, or with --json as {"error": [...]} on stdout, and exits with 1."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:
            reports = explain(error)
            if reports is None:
                raise
            fail(ctx, reports)


def fail(ctx: click.Context, reports: list[Report]) -> NoReturn:
    """Prints what is wrong and leaves with exit code 1."""
    if ctx.params.get("as_json"):
        click.echo(json.dumps({"error": reports}, default=str))
    else:
        for report in reports:
            click.echo(f"Error: {sentence(report)}", err=True)
    ctx.exit(1)


def sentence(report: Report) -> str:
    """A report in one line: the field, the value given, what is wrong with it and the fix."""
    subject = ""
    if report["field"]:
        given = "" if report["value"] is None else f" (given: {report['value']!r})"
        subject = f"{report['field']}{given}: "
    return f"{subject}{report['message']} {report['fix']}".strip()


def explain(error: Exception) -> list[Report] | None:
    """What is wrong, for errors that a person can mend; None for click's own and for those that are our mistake."""
    if isinstance(error, CommandError):
        return [error.report]
    if isinstance(error, (click.exceptions.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError)):
        return None
    return _configuration(error) or _run(error) or _database(error) or _system(error)


def _configuration(error: Exception) -> list[Report] | None:
    from training.failure import DataError
    from training.fields import ConfigError
    from training.model_files import ModelError
    from worker.accounts import AccountError
    from worker.settings import SettingsError

    if isinstance(error, ConfigError):
        return [{"field": p.field, "value": p.value, "message": p.message, "fix": p.fix} for p in error.problems]
    if isinstance(error, AccountError):
        return [vars(error.problem)]
    if isinstance(error, ModelError):
        return [{"field": error.field, "value": error.value, "message": error.message, "fix": error.fix}]
    if isinstance(error, SettingsError):
        return [_report(line) for line in str(error).splitlines()]
    return _data(error) if isinstance(error, DataError) else None


def _data(error: "DataError") -> list[Report]:
    """Everything that is wrong with a file that was refused; its place is in the message."""
    from app.dataset_words import problems_of, where

    found = [(where(problem), problem) for problem in problems_of(error) if problem["level"] == "error"]
    return [_report(f"{place}{': ' if place else ''}{problem['message']}", problem["fix"]) for place, problem in found]


def _run(error: Exception) -> list[Report] | None:
    from app.lock import CannotStart
    from worker import datasets, runs

    known = (runs.RunNotFound, runs.NotRunning, runs.NotResumable, CannotStart, datasets.DatasetNotFound, datasets.DatasetInUse)
    return [_report(str(error))] if isinstance(error, known) else None


def _database(error: Exception) -> list[Report] | None:
    from sqlalchemy.exc import DatabaseError, OperationalError, ProgrammingError

    if not isinstance(error, DatabaseError):
        return None
    reason = str(error.orig).strip().splitlines()[0] if error.orig else str(error)
    if _table_missing(error, reason):
        return [_report("The database lacks tables of this version.", "Create them with `python -m worker.database`.")]
    if isinstance(error, OperationalError) and "locked" in reason:
        return [_report("The database is locked by another program.", "Try again, or end the program that holds it.")]
    if isinstance(error, (OperationalError, ProgrammingError)):
        fix = "Check LATHE_DATABASE_URL and that its server runs."
        return [_report(f"The database does not answer: {reason}.", fix)]
    return [_report(f"The database cannot be read: {reason}.", "Check LATHE_DATA_DIR and LATHE_DATABASE_URL.")]


def _table_missing(error: Any, reason: str) -> bool:
    if isinstance(error.orig, sqlite3.OperationalError):
        return reason.startswith(("no such table", "no such column"))
    return getattr(error.orig, "sqlstate", None) in ("42P01", "42703")


def _system(error: Exception) -> list[Report] | None:
    if not isinstance(error, OSError) or error.strerror is None:
        return None
    fix = "Check the path, its rights and the free space."
    return [{"field": str(error.filename or "file"), "value": None, "message": f"{error.strerror}.", "fix": fix}]


def _report(message: str, fix: str = "") -> Report:
    return {"field": None, "value": None, "message": message, "fix": fix}
