"""`lathe logs`: the log of a run's training process, as the supervisor stored it."""

import json
import time

import click

from app.cli.options import ready
from worker.store import database, runs
from worker.store import logs as log_lines
from worker.store.tables import LogLine

POLL_SECONDS = 1.0
BATCH = 1000


def logs(run_id: str, *, follow: bool, tail: int, as_json: bool) -> int:
    """Prints the last `tail` lines and, with `follow`, new lines until the run ends. Returns the exit code.

    Raises:
        RunNotFound: no run has this id.
    """
    ready()
    with database.read() as session:
        run = runs.get(session=session, run_id=run_id)
        identity, waiting = run.id, run.status == "queued"
    last = _print(_lines(identity, 0, tail), as_json, 0)
    if last == 0 and not as_json:
        click.echo(f"No output yet{': the run is queued' if waiting else ''}.", err=True)
    try:
        while follow:
            # Read the status before the lines: an ended run prints nothing more.
            ended = _ended(identity)
            last = _print(_lines(identity, last, BATCH), as_json, last)
            if ended:
                break
            time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        return 130
    return 0


def _ended(run_id: str) -> bool:
    with database.read() as session:
        return runs.get(session=session, run_id=run_id).status.ended


def _lines(run_id: str, after: int, limit: int) -> list[LogLine]:
    with database.read() as session:
        lines = log_lines.tail(session=session, run_id=run_id, after_id=after, limit=limit)
        session.expunge_all()
        return lines


def _print(lines: list[LogLine], as_json: bool, last: int) -> int:
    for line in lines:
        click.echo(json.dumps(line.model_dump(mode="json", exclude={"run_id"})) if as_json else line.text)
    return max((line.id or 0 for line in lines), default=last)
