"""`lathe render`: rows as a run renders them, and what is wrong with them."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from app.cli import sent_files
from app.cli.client import connect
from app.cli.runs.run import configuration
from app.cli.terminal import unchanged
from app.format import templates
from worker.runs import rows_check

_SECONDS = 120.0
FAULTY = 1


def render(path: Path | None, overrides: dict[str, Any], *, as_json: bool) -> int:
    """Prints some rows of the run's data as it would train on them, and their faults. Returns the exit code: 1 with errors.

    Raises:
        ConfigError: settings are invalid, or the rows of this run cannot be checked.
    """
    client, config = connect(), configuration(path, overrides)
    settings = sent_files.settings(client, config)
    document = client.send("POST", "/api/renderings", json=settings, seconds=_SECONDS)
    checked = rows_check.of_document(document)
    text = json.dumps(document) if as_json else templates.page(checked, colors=sys.stdout.isatty())
    click.echo(text, file=unchanged(sys.stdout))
    return FAULTY if any(one.report.errors for one in checked) else 0
