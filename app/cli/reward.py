"""The work of `lathe reward`."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from app.cli import sent_files
from app.cli.client import connect, path_of
from app.cli.evaluate import with_code
from app.cli.options import CommandError
from app.cli.runs.follow import follow, screen_for
from app.cli.runs.show import failure
from app.cli.samples import samples
from app.format import numbers
from app.format import reward_text as words
from training.config.fields import parse
from training.rewards.rewards import functions_in
from worker.store.tables import Status

_PROMPTS, _SAMPLES = 16, 8  # of each prompt
_SHOWN = 60  # characters of an answer
_ANSWERS_FIX = 'Write a line for each row: {"answer": "..."}, with "row" (from 0) if rows are left out.'


def reward(rewards: tuple[str, ...], *, as_json: bool, **options: Any) -> int:
    """Tries rewards on rows and prints what they give. Returns the exit code."""
    own: dict[str, str] = {}
    entries = [entry for given in rewards for entry in _entries(given, own)]
    if options["model"]:
        return of_model(run_settings(entries, own, options), as_json=as_json)
    client = connect()
    body = {"rewards": entries, "own": own, "data": sent_files.data(client, options["data"])}
    body |= {"columns": options["columns"]} | ({"rows": options["rows"]} if options["rows"] else {})
    if options["answers"]:
        body["answers"] = dict(list(_answers(options["answers"]).items())[: options["rows"]])
    found = client.send("POST", "/api/rewards", json=body)
    click.echo(json.dumps(found) if as_json else "\n".join(lines(found)))
    return int(any(trouble["failed"] for trouble in found["troubles"].values()))


def run_settings(entries: Sequence[Any], own: Mapping[str, str], options: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run that draws samples of an untrained model, scores them and stops."""
    if options["answers"]:
        raise CommandError("--answers", str(options["answers"]), "and --model exclude each other.", "Leave one out.")
    if len(own) > 1:
        fix = "Put their functions into one file."
        raise CommandError("REWARD", ", ".join(own), "are several files, and a run has one.", fix)
    file = next(iter(own), "")
    named = [_without(file, entry) for entry in entries]
    settings = {name: options[name] for name in ("model", "data", "columns", "max_completion_length") if options[name]}
    settings |= {"rewards": json.dumps(named)} | ({"reward_code": f"{own[file]}\n"} if own else {})
    prompts = options["rows"] or _PROMPTS
    settings |= {"micro_batch_size": _SAMPLES, "num_generations": _SAMPLES}
    return settings | {"task": "grpo", "baseline_prompts": prompts, "stop_after_baseline": True}


def of_model(settings: Mapping[str, Any], *, as_json: bool) -> int:
    """Queues such a run, follows it, and prints its samples. Returns the exit code: 1 if nothing can be learned from them."""
    client = connect()
    queued = client.submit("/api/runs", sent_files.settings(client, parse(dict(settings))))
    status = follow(queued["id"], screen_for(sys.stderr))
    samples(queued["id"], as_json=as_json, step=0)
    if error := client.get(path_of("runs", queued["id"]))["error"]:
        click.echo(numbers.pairs(failure(error)), err=True)
    return int(status != Status.STOPPED)


def _without(file: str, entry: Any) -> Any:
    """A reward as the settings of a run name it: a function without its file."""
    if isinstance(entry, dict):
        return dict(entry) | {"reward": str(entry["reward"]).removeprefix(f"{file}:")}
    return str(entry).removeprefix(f"{file}:")


def lines(found: dict[str, Any]) -> list[str]:
    """The rows with their rewards as a table, the means, and what went wrong."""
    head = ["ROW", *words.heads(found)]
    rows = [[*cells, _short(answer)] for *cells, answer in words.rows(found)]
    table = numbers.table([[*head, "TOTAL", "ANSWER"], *rows], right=frozenset(range(1, len(head) + 1)))
    troubles = words.troubles(found)
    return [table, *(["", *troubles] if troubles else [])]


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
