"""`lathe export`: a copy of a finished run's zip."""

import json
import shutil
from pathlib import Path

import click

from app import text
from app.cli_database import ready
from app.cli_errors import CommandError
from worker import database, runs
from worker.archive import ARCHIVE_FILE
from worker.models import Run, Status
from worker.settings import get_settings


def export(run_id: str, output: Path, *, force: bool, as_json: bool) -> None:
    """Copies the run's zip to `output`, whole or not at all.

    Raises:
        RunNotFound: no run has this id.
        CommandError: the run has no adapter (yet, or on this machine), or `output` exists.
        OSError: `output` cannot be written.
    """
    ready()
    with database.read() as session:
        source = _archive(runs.get(session=session, run_id=run_id))
    target = output / f"{source.parent.name}.zip" if output.is_dir() else output
    if target.exists() and not force:
        fix = "Give another name, or --force to replace it."
        raise CommandError("exists already.", fix, field="--output", value=str(target))
    copy_whole(source, target)
    size = target.stat().st_size
    told = f"Wrote {target} ({text.byte_size(size)})."
    click.echo(json.dumps({"file": str(target), "bytes": size}) if as_json else told)


def copy_whole(source: Path, target: Path) -> None:
    """Copies through a temporary file beside `target`, so that a full disk leaves no half of a zip."""
    part = target.with_name(f".{target.name}.part")
    try:
        shutil.copyfile(source, part)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def _archive(run: Run) -> Path:
    path = get_settings().runs_dir / run.id / ARCHIVE_FILE
    if path.is_file():
        return path
    if not run.status.ended:
        message = f"Run {run.id} is {run.status.value}: its adapter is written at the end."
        raise CommandError(message, f"Wait for it: lathe show {run.id}")
    if run.status is not Status.FINISHED:
        message = f"Run {run.id} is {run.status.value}: it has no adapter."
        raise CommandError(message, f"Go on with it: lathe resume {run.id}")
    fix = "Export it on the machine that trained it, or set LATHE_DATA_DIR to the folder that both share."
    raise CommandError(f"Run {run.id} has no {path}.", fix)
