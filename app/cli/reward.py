"""The work of `lathe reward`."""

import json
from pathlib import Path
from typing import Any

import click

from app.cli import sent_files
from app.cli.client import connect
from app.cli.evaluate import with_code
from app.cli.options import CommandError
from app.format import numbers
from training.scoring.rewards import functions_in
from training.units import NONE

_SHOWN = 60  # characters of an answer
_ANSWERS_FIX = 'Write a line for each row: {"answer": "..."}, with "row" (from 0) if rows are left out.'


def reward(rewards: tuple[str, ...], options: dict[str, Any], *, as_json: bool) -> int:
    """Tries rewards on rows and prints what they give. Returns the exit code.

    Raises:
        CommandError, UserError: an option is wrong, or the rows cannot be read.
    """
    own: dict[str, str] = {}
    entries = [entry for given in rewards for entry in _entries(given, own)]
    client = connect()
    body = {"rewards": entries, "own": own, "data": sent_files.data(client, options["data"])}
    body |= {"columns": options["columns"]} | ({"rows": options["rows"]} if options["rows"] else {})
    if options["answers"]:
        body["answers"] = dict(list(_answers(options["answers"]).items())[: options["rows"]])
    found = client.send("POST", "/api/rewards", json=body)
    click.echo(json.dumps(found) if as_json else "\n".join(lines(found)))
    return int(any(trouble["failed"] for trouble in found["troubles"].values()))


def lines(found: dict[str, Any]) -> list[str]:
    """The rows with their rewards as a table, the means, and what went wrong."""
    names = [one["name"] for one in found["rewards"]]
    head = [
        "ROW",
        *(f"{one['name']}*{one['weight']:g}" if one["weight"] != 1 else one["name"] for one in found["rewards"]),
    ]
    rows = [
        [
            str(row["row"]),
            *(_number(row["scores"][name]) for name in names),
            _number(row["total"]),
            _short(row["answer"]),
        ]
        for row in found["rows"]
    ]
    totals = [row["total"] for row in found["rows"] if row["total"] is not None]
    mean = [
        "mean",
        *(_number(one["mean"]) for one in found["rewards"]),
        _number(sum(totals) / len(totals) if totals else None),
        "",
    ]
    table = numbers.table([[*head, "TOTAL", "ANSWER"], *rows, mean], right=frozenset(range(1, len(head) + 1)))
    troubles = [f"{name}: {_failed(one)}{one['sentence']}" for name, one in found["troubles"].items()]
    return [table, *(["", *troubles] if troubles else [])]


def _failed(trouble: dict[str, Any]) -> str:
    return f"no score for {numbers.plural(trouble['failed'], 'row', 'rows')}. " if trouble["failed"] else ""


def _number(value: float | None) -> str:
    return NONE if value is None else f"{value:.4g}"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}..."


def _entries(given: str, own: dict[str, str]) -> list[Any]:
    """The rewards of an argument; the code of their files goes into `own`."""
    if given.lstrip().startswith("{"):
        return [json.loads(with_code(given, own, "REWARD"))]
    return [entry for part in given.split(",") for entry in _named(part.strip(), own)]


def _named(part: str, own: dict[str, str]) -> list[str]:
    """A name as it is; a file alone is each of its functions."""
    name, star, weight = part.partition("*")
    if not name.strip().endswith(".py"):
        return [with_code(part, own, "REWARD")]
    file = with_code(f"{name.strip()}:f", own, "REWARD").partition(":")[0]
    return [f"{file}:{function}{star}{weight}" for function in functions_in("REWARD", file, own[file])]


def _answers(file: Path) -> dict[int, str]:
    """The answers in a file by number of their row, from 1."""
    try:
        read = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError("--answers", str(file), f"cannot be read: {error}.", "Give a text file in UTF-8.") from None
    if file.suffix not in (".jsonl", ".ndjson"):
        return dict(enumerate(read, 1))
    found: dict[int, str] = {}
    for number, line in enumerate(filter(str.strip, read), 1):
        try:
            record = json.loads(line)
            place, answer = (record.get("row"), record["answer"]) if isinstance(record, dict) else (None, record)
            found[number if place is None else int(place) + 1] = str(answer)  # rows of answers.jsonl count from 0
        except (ValueError, TypeError, KeyError):
            raise CommandError("--answers", str(file), f"has no answer in line {number}.", _ANSWERS_FIX) from None
    return found
