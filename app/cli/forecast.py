"""`lathe forecast`, `targets` and `render`: the memory, the trainable parameters and the rows of a run before it is queued."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from app.cli import sent_files
from app.cli.client import connect
from app.cli.options import unchanged
from app.cli.runs.run import configuration
from app.format import numbers, rows
from training.config.fields import parse
from training.config.run_config import on_gpus
from training.config.yaml_file import read_config
from worker.datasets import run_data
from worker.forecasts import shapes
from worker.runs.settle import settle

_PATH = "/api/forecasts"
_SECONDS = 300.0  # a simulation takes up to a minute
_PARTS = {"matched": "With an adapter", "whole": "Fully trained", "others": "Linear, not trained"}


def show(
    path: Path | None,
    overrides: dict[str, Any],
    *,
    gpu: str | None,
    gpus: int | None,
    host_memory: float | None,
    simulate: bool | None,
    fetch_config: bool,
    as_json: bool,
    solve: tuple[str, ...] = (),
) -> None:
    """Prints the memory of a run on each rank, a verdict, settings that fit, its speed, and the most that fits."""
    values = {"data": "none"} | overrides
    config = on_gpus(read_config(path, values) if path else parse(values), gpus, overrides)
    # Only a tokenized data set needs a database.
    client = connect(database=any(run_data.DATASET_ID.fullmatch(source.path) for source in config.sources))
    asked = {"gpu": gpu, "host_memory": host_memory, "simulate": simulate, "fetch_config": fetch_config, "solve": solve}
    request: dict[str, Any] = {"json": config.model_dump(mode="json", exclude_unset=True), "seconds": _SECONDS}
    if as_json:
        click.echo(json.dumps(client.send("POST", _PATH, params=asked, **request)))
    else:
        click.echo(client.text(_PATH, "POST", params=asked | {"form": "text"}, **request))


def targets(path: Path | None, overrides: dict[str, Any], *, as_json: bool) -> None:
    """Prints the parameters that the settings train. Data is optional."""
    config = read_config(path, overrides) if path else parse({"data": "none"} | overrides)
    answer = shapes.list_targets(settle(config))
    click.echo(json.dumps(answer) if as_json else targets_page(answer))


def targets_page(answer: shapes.Targets) -> str:
    """The trainable parameters as text."""
    share = numbers.percent(answer["trainable"] / answer["total"], 4)
    lines = [f"{answer['trainable']:,} of {answer['total']:,} parameters are trainable ({share})."]
    for part, heading in _PARTS.items():
        groups = [[group["pattern"], f"x {group['count']}", group["shape"]] for group in answer[part]]
        if groups:
            lines.append("\n" + numbers.table([[heading, "", "in -> out"], *groups]))
    return "\n".join(lines)


_RENDER_SECONDS = 120.0
FAULTY = 1


def render(path: Path | None, overrides: dict[str, Any], *, as_json: bool) -> int:
    """Prints some rows of the run's data as it would train on them, and their faults. Returns the exit code: 1 with errors."""
    from worker.runs import rows_check

    client, config = connect(), configuration(path, overrides)
    settings = sent_files.settings(client, config)
    document = client.send("POST", "/api/renderings", json=settings, seconds=_RENDER_SECONDS)
    checked = rows_check.of_document(document)
    text = json.dumps(document) if as_json else rows.page(checked, colors=sys.stdout.isatty())
    click.echo(text, file=unchanged(sys.stdout))
    return FAULTY if any(one.report.errors for one in checked) else 0
