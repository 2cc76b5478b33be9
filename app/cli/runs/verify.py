"""`lathe verify`: compares each form of a result with what was trained."""

import json
from collections.abc import Sequence
from typing import Any

import click

from app.cli.errors import CommandError
from app.format.runs import difference, figures
from worker.runs import verification
from worker.runs.results import NoResult
from worker.store import database, runs

_NOT_EQUAL = 1


def verify(run_id: str, forms: Sequence[str], *, as_json: bool) -> None:
    """Prints each form as it is compared. Exits with 1 if one differs from what was trained.

    Raises:
        RunNotFound: no run has this id.
        CommandError: the run has nothing to compare.
    """
    with database.read() as session:
        run = runs.get(session=session, run_id=run_id)
        session.expunge(run)
    try:
        for form in verification.verify(run, forms):
            if not as_json:
                _tell(form)
    except NoResult as error:
        raise CommandError("RUN", run_id, error.message, error.fix) from None
    found = verification.latest(run) or {}
    if as_json:
        click.echo(json.dumps(found))
    else:
        click.echo(f"Compared with the trained model on {found['rows']} rows.")
    if not found.get("equal"):
        raise click.exceptions.Exit(_NOT_EQUAL)


def _tell(form: dict[str, Any]) -> None:
    click.echo(f"{form['form']:12}  {figures(form)}")
    if text := difference(form):
        click.echo(f"{'':12}  {text}")
