"""`lathe compare`: runs side by side, for people, as Markdown to copy, or as JSON."""

import json

import click

from app import compare, text
from app.cli_database import ready
from app.run_document import document
from worker import database


def table(run_ids: list[str], *, as_json: bool, as_markdown: bool) -> None:
    """Prints the comparison of runs in the order given.

    Raises:
        RunNotFound: no run has one of these ids.
    """
    ready()
    with database.read() as session:
        found = [document(session, run_id) for run_id in run_ids]
    if as_json:
        click.echo(json.dumps(compare.as_json(found)))
    elif as_markdown:
        click.echo(compare.markdown(found))
    else:
        rows = compare.rows(found)
        click.echo(text.table(rows, right=frozenset(range(1, len(rows[0])))))
