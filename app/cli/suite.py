"""The work of `lathe suite` and `lathe suites`."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import click

from app.cli import sent_files
from app.cli.client import connect, path_of
from app.cli.options import CommandError
from app.cli.runs.follow import POLL_SECONDS, screen_for
from app.format import numbers
from app.format.junit import case_text, errors, junit
from training.scoring.cases import CaseVerdict
from worker.choices import Status

_READ = ("cases", "data", "text")
"""Options that are files, whose contents are sent."""


def suite(run_id: str, *, junit_file: Path | None, as_json: bool, **options: Any) -> int:
    """Queues a suite and waits for its end. Returns 0 if it passed."""
    client = connect()
    body = {name: value for name, value in options.items() if value is not None and name not in _READ}
    body |= {"metrics": list(options["metrics"])}
    body |= {"cases": _cases(options["cases"])} if options["cases"] else {}
    body |= {"text": options["text"].read_text(encoding="utf-8")} if options["text"] else {}
    body |= {"data": sent_files.data(client, options["data"])} if options["data"] else {}
    found = client.send("POST", path_of("runs", run_id, "/suites"), json=body)
    found = _followed(found)
    if junit_file:
        junit_file.write_text(junit(found), encoding="utf-8")
    click.echo(json.dumps(found) if as_json else "\n".join(lines(found)))
    return 0 if found["passed"] else 1


def listing(run_id: str, *, as_json: bool) -> None:
    """Prints the suites of a run."""
    found = connect().get(path_of("runs", run_id, "/suites"))["suites"]
    if as_json:
        click.echo(json.dumps(found))
        return
    if not found:
        click.echo(f"Run {run_id} has no suites. Start one with: lathe suite {run_id} --cases FILE")
    for one in found:
        click.echo("\n".join(lines(one)))


def lines(found: dict[str, Any]) -> list[str]:
    """A suite as lines for a terminal."""
    verdict = {True: "passed", False: "failed", None: found["status"]}[found["passed"]]
    checks = [[check["state"], check["name"], check["text"]] for check in found["checks"]]
    wrong = [case for case in found["cases"] if not CaseVerdict(case["verdict"]).passed]
    counts = ", ".join(f"{count} {kind}" for kind, count in found["verdicts"].items())
    shown = [f"  {case['verdict']}: case {case['number']}: {case_text(case)}".replace("\n", "\n    ") for case in wrong]
    return [
        f"Suite {found['id']} of run {found['run_id']}: {verdict}",
        *([numbers.table(checks)] if checks else []),
        *([f"Cases: {counts}", *shown] if found["cases"] else []),
        *errors(found),
    ]


def _cases(file: Path) -> list[Any]:
    """The cases in a file: a JSON list, or a JSON object in each line."""
    try:
        text = file.read_text(encoding="utf-8")
        return (
            list(json.loads(text))
            if text.lstrip().startswith("[")
            else [json.loads(line) for line in text.splitlines() if line]
        )
    except (OSError, ValueError) as error:
        fix = 'Write a JSON object in each line, such as {"user": "Hello.", "expect": "baseline"}.'
        raise CommandError("--cases", str(file), f"cannot be read: {error}.", fix) from None


def _followed(found: dict[str, Any]) -> dict[str, Any]:
    """Shows the progress until the suite ends. Returns the ended suite."""
    screen = screen_for(sys.stderr)
    screen.note(f"Suite {found['id']} of run {found['run_id']}")
    while not Status(found["status"]).ended:
        ended = sum(Status(one["status"]).ended for one in found["evaluations"])
        screen.update(f"{ended} of {len(found['evaluations'])} evaluations ended", found["status"])
        time.sleep(POLL_SECONDS)
        found = connect().get(path_of("suites", found["id"]))
    screen.close()
    return found
