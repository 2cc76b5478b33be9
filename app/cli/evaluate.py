"""The work of `lathe evaluate` and `lathe evaluations`."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import click

from app.cli import sent_files
from app.cli.client import connect, path_of
from app.cli.options import CommandError
from app.cli.runs.follow import POLL_SECONDS, QUIET_SECONDS, Screen, screen_for
from app.cli.runs.run import EXIT
from app.format import evaluation_text as words
from app.format import numbers
from training.scoring.request import EvaluationRequest
from worker.store.tables import Status


def evaluate(run_id: str, *, only_queue: bool, as_json: bool, **options: Any) -> int:
    """Queues an evaluation and waits for its end. Returns the exit code."""
    client, values = connect(), request(options)
    body = values | {"data": sent_files.data(client, options["data"])}
    found = client.send("POST", path_of("runs", run_id, "/evaluations"), json=body)
    if only_queue:
        text = f"Queued evaluation {found['id']}. Show it with: lathe evaluations {found['run_id']}"
        click.echo(json.dumps(found) if as_json else text)
        return 0
    found = _follow(found, screen_for(sys.stderr))
    if as_json:
        click.echo(json.dumps(found))
    else:
        click.echo("\n".join(words.lines(found)))
    return EXIT[Status(found["status"])]


def listing(run_id: str, *, as_json: bool) -> None:
    """Prints the evaluations of a run."""
    found = connect().get(path_of("runs", run_id, "/evaluations"))["evaluations"]
    if as_json:
        click.echo(json.dumps(found))
        return
    if not found:
        click.echo(f"Run {run_id} has no evaluations. Evaluate it with: lathe evaluate {run_id} --data FILE")
    rows = [[one["id"], one["status"], one["source"], words.data(one), words.scores(one)] for one in found]
    if rows:
        click.echo(numbers.table([["ID", "STATUS", "SOURCE", "DATA", "SCORES"], *rows]))


def request(options: dict[str, Any]) -> dict[str, Any]:
    """The options as the values of an evaluation, with the code of own metrics."""
    own: dict[str, str] = {}
    metrics = [with_code(name, own, "--metric") for name in options["metrics"]]
    values = {name: value for name, value in options.items() if name in EvaluationRequest.model_fields}
    judge = _judge(options)
    if judge and "judge" not in metrics:
        metrics = [*(metrics or ["exact_match"]), "judge"]
    return values | {"metrics": metrics or None, "own": own, "judge": judge, "lm_eval": list(options["lm_eval"])}


def with_code(name: str, own: dict[str, str], option: str) -> str:
    """The metric or reward, also one as JSON, with the name of its file only, whose code goes into `own`."""
    if name.lstrip().startswith("{"):
        return json.dumps(_entry_with_code(name, own, option))
    file, colon, function = name.rpartition(":")
    if not colon or not file.endswith(".py"):
        return name
    path = Path(file).expanduser()
    try:
        own[path.name] = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        fix = "Give FILE.py:FUNCTION with a file of this machine."
        raise CommandError(option, name, f"cannot be read: {error}.", fix) from None
    return f"{path.name}:{function}"


def _entry_with_code(text: str, own: dict[str, str], option: str) -> dict[str, Any]:
    try:
        entry = json.loads(text)
        kind = str(entry["reward"])
    except (ValueError, KeyError, TypeError) as error:
        fix = 'Write it as {"reward": "length", "most": 50}, in quotes.'
        raise CommandError(option, text[:200], f"is no reward as JSON: {error}.", fix) from None
    return dict(entry) | {"reward": with_code(kind, own, option)}


def _judge(options: dict[str, Any]) -> dict[str, Any] | None:
    url, model = options["judge_url"], options["judge_model"]
    if not url and not model:
        return None
    if not url or not model:
        missing = "--judge-model" if url else "--judge-url"
        raise CommandError(missing, None, "is missing.", "A judge needs --judge-url and --judge-model.")
    prompt = options["judge_prompt"].read_text(encoding="utf-8") if options["judge_prompt"] else None
    given = {"url": url, "model": model, "prompt": prompt, "scale": options["judge_scale"]}
    return {name: value for name, value in given.items() if value is not None}


def _follow(found: dict[str, Any], screen: Screen) -> dict[str, Any]:
    """Shows the progress until the evaluation ends, the overlap as soon as it is known. Returns the ended evaluation."""
    began, overlap = time.monotonic(), False
    screen.note(f"Evaluation {found['id']} of run {found['run_id']}")
    while not Status(found["status"]).ended:
        if found["overlap"] and not overlap:
            overlap = True
            screen.note(words.overlap(found))
        waiting = found["status"] == Status.QUEUED and time.monotonic() - began > QUIET_SECONDS
        line = "Waiting for a device; `lathe up` starts a worker" if waiting else words.progress(found)
        screen.update(line, found["phase"] or found["status"])
        time.sleep(POLL_SECONDS)
        found = connect().get(path_of("evaluations", found["id"]))
    screen.close()
    return found
