"""`lathe dataset rows`: the rows of a stored data set, or those that contain a text."""

import json
from typing import Any

import click

from app.cli.options import ready
from app.documents import rows as rows_document
from app.documents.dataset import find
from app.words import numbers
from worker.store import database

_SEARCH_SECONDS = 3600.0  # the process that searches has a limit of its own
_SHOWN = 2000  # characters of a value


def rows(dataset_id: str, offset: int, limit: int, search: str, *, as_json: bool) -> None:
    """Prints rows after the first `offset`, with their numbers from 1.

    Raises:
        DatasetNotFound: no data set has this id.
        DataError: the rows cannot be read.
    """
    ready()
    with database.read() as session:
        item = find(session, dataset_id)
    answer = rows_document.document(item, offset, limit, search, seconds=_SEARCH_SECONDS)
    click.echo(json.dumps(answer) if as_json else page(answer, search))


def page(answer: dict[str, Any], search: str) -> str:
    """The rows as text: the number of each, then its values."""
    if not answer["rows"]:
        return "No row contains the text." if search else "No rows there."
    lines = [line for row in answer["rows"] for line in _lines(row)]
    more = f" and more (--offset {answer['next']})" if answer["next"] is not None else ""
    of = f"of {'more than ' if answer.get('more') else ''}{answer['total']:,} {'found' if search else 'rows'}"
    return "\n".join([*lines, "", f"{numbers.plural(len(answer['rows']), 'row')} {of}{more}."])


def _lines(row: dict[str, Any]) -> list[str]:
    head = f"row {row['row']:,}"
    if "problem" in row:
        return [f"{head} {row['problem']} {row['fix']}"]
    return [head, *(f"  {name}: {_text(value)}" for name, value in row["values"].items())]


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    plain = "".join(letter if letter.isprintable() or letter in "\n\t" else "\ufffd" for letter in text)
    return numbers.shorten(plain, _SHOWN).replace("\n", "\n    ")
