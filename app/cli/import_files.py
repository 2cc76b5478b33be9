"""`lathe import`: configuration files of other programs as the configuration of a run."""

import json
from collections.abc import Sequence
from pathlib import Path

import click

from app.format import numbers
from training.config.yaml_file import to_yaml
from training.errors import UserError
from training.foreign.entries import Entry, Outcome
from training.foreign.translate import Imported, foreign_program, import_files

_WIDTH = 40


def import_(paths: Sequence[Path], output: Path | None, *, as_json: bool) -> None:
    """Prints what becomes of every key, and the run's configuration; writes that to `output` if it is given."""
    imported = import_files(paths)
    yaml = to_yaml(imported.config())
    if output is not None:
        _write(output, yaml)
    if as_json:
        click.echo(json.dumps(imported.document() | {"yaml": yaml}, default=str))
        return
    click.echo(_table(imported), err=True)
    if output is None:
        click.echo(yaml, nl=False)
    else:
        click.echo(f"Wrote {output}. Start it with: lathe run {output}", err=True)


def refuse_foreign(path: Path) -> None:
    """Refuses a file of another program, with the command that translates it."""
    program = foreign_program(path)
    if program is not None:
        message = f"is a configuration of {program}."
        raise UserError(
            "configuration file", str(path), message, f"`lathe import {path} -o run.yaml` makes it a run's."
        )


def _table(imported: Imported) -> str:
    lines = [f"{', '.join(imported.programs)}: {_counts(imported)}", ""]
    for outcome in Outcome:
        some = [one for one in imported.entries if one.outcome is outcome]
        if some:
            lines += [f"{outcome.value.capitalize()}:", *map(_line, some), ""]
    if imported.missing:
        lines.append(f"Still to set: {', '.join(imported.missing)}.")
    return "\n".join(lines).rstrip() + "\n"


def _line(one: Entry) -> str:
    given = "" if one.value is None else f": {numbers.shorten(str(one.value), _WIDTH)}"
    became = ", ".join(f"{name} {numbers.shorten(str(value), _WIDTH)}" for name, value in one.settings.items())
    return f"  {one.key}{given}" + (f" -> {became}" if became else "") + (f"  ({one.note})" if one.note else "")


def _counts(imported: Imported) -> str:
    counted = {outcome: sum(one.outcome is outcome for one in imported.entries) for outcome in Outcome}
    return ", ".join(f"{count} {outcome.value.removesuffix(' here')}" for outcome, count in counted.items() if count)


def _write(output: Path, text: str) -> None:
    try:
        with output.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UserError("--output", str(output), "exists already.", "Give another name, or delete it.") from None
    except OSError as error:
        raise UserError(
            "--output", str(output), f"cannot be written: {error.strerror}.", "Give another path."
        ) from None
