"""`lathe logs`: the log of a run's training process, as the supervisor stored it."""

import json
import time
from typing import Any

import click

from app.cli.sources import logs as source

POLL_SECONDS = 1.0


def logs(run_id: str, *, follow: bool, tail: int, as_json: bool) -> int:
    """Prints the last `tail` lines and, with `follow`, new lines until the run ends. Returns the exit code.

    Raises:
        RunNotFound, ServerError: no run has this id.
    """
    page = source.tail(run_id, tail)
    _print(page["lines"], as_json)
    if not page["lines"] and not as_json:
        click.echo(f"No output yet{': the run is queued' if page['status'] == 'queued' else ''}.", err=True)
    try:
        while follow:
            page = source.following(run_id, page["next"])
            _print(page["lines"], as_json)
            if not page["lines"]:
                if page["ended"]:
                    break
                time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        return 130
    return 0


def _print(lines: list[dict[str, Any]], as_json: bool) -> None:
    for line in lines:
        click.echo(json.dumps(line) if as_json else line["text"])
