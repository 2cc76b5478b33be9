"""`lathe targets`: which modules of a model a method trains, before anything is queued."""

import json
from pathlib import Path
from typing import Any

import click

from app import text
from training.config_file import read_config
from training.fields import ConfigError, Problem, parse
from worker import targeting

_PARTS = {"matched": "With an adapter", "whole": "Trained whole", "others": "Linear, not trained"}


def targets(path: Path | None, overrides: dict[str, Any], *, as_json: bool) -> None:
    """Prints what the settings would train. Data need not be given.

    Raises:
        ConfigError: a setting is wrong, the model cannot be looked at, or nothing in it matches.
    """
    config = read_config(path, overrides) if path else parse({"data": "none"} | overrides)
    found = targeting.look(config)
    if "problem" in found:
        raise ConfigError([Problem(**found["problem"])])
    click.echo(json.dumps(found) if as_json else told(found))


def told(found: targeting.Finding) -> str:
    """The finding as a few aligned lines."""
    trains = f"{found['trainable']:,} of {found['total']:,} parameters train"
    lines = [f"{trains} ({text.percent(found['trainable'] / found['total'], 4)})."]
    for part, heading in _PARTS.items():
        rows = [[one["pattern"], f"x {one['count']}", one["shape"]] for one in found[part]]
        if rows:
            lines.append("\n" + text.table([[heading, "", "in -> out"], *rows]))
    return "\n".join(lines)
