"""`lathe render`: rows as a run renders them, and what is wrong with them."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from app.cli.options import ready
from app.cli.runs.run import configuration
from app.cli.sources.data_files import sent
from app.cli.sources.server import Server, chosen
from app.cli.terminal import unchanged
from app.words import templates
from training.config.run_config import RunConfig
from worker.allowed_paths import EVERYTHING
from worker.runs import rows_check

_SECONDS = 120.0
FAULTY = 1


def render(path: Path | None, overrides: dict[str, Any], *, as_json: bool) -> int:
    """Prints some rows of the run's data as it would train on them, and their faults. Returns the exit code: 1 with errors.

    Raises:
        ConfigError: settings are invalid, or the rows of this run cannot be checked.
    """
    config = configuration(path, overrides)
    if server := chosen():
        document = _of_server(server, config)
        click.echo(json.dumps(document["report"]) if as_json else document["text"])
        return FAULTY if _has_errors(document["report"]) else 0
    ready()
    checked = rows_check.check_rows(config, EVERYTHING)
    document = rows_check.as_document(checked)
    text = json.dumps(document) if as_json else templates.page(checked, colors=sys.stdout.isatty())
    click.echo(text, file=unchanged(sys.stdout))
    return FAULTY if _has_errors(document) else 0


def _of_server(server: Server, config: RunConfig) -> dict[str, Any]:
    values = sent(server, config).model_dump(mode="json", exclude_unset=True)
    report = server.send("POST", "/api/renderings", json=values, seconds=_SECONDS)
    text = server.text("/api/renderings", "POST", json=values, params={"form": "text"}, seconds=_SECONDS)
    return {"report": report, "text": text}


def _has_errors(document: dict[str, Any]) -> bool:
    findings = (finding for one in document["data_sets"] for finding in one["findings"])
    return any(finding["severity"] == "error" for finding in findings)
