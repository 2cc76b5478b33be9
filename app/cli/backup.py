"""`lathe backup` and `lathe restore-backup`."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from app.cli.client import ready
from app.cli.options import CommandError, Progress
from app.format import numbers
from app.local.lock import only_one
from training.files import sync, whole_file
from training.units import byte_size
from worker.backups import making, restoring
from worker.settings import get_settings

_STREAM = "-"


def backup(*, file: str, secrets: bool) -> None:
    """Writes the installation to `file`, completely or not at all, and says what the backup does not contain."""
    ready()
    if file == _STREAM:
        with _shown("Backup") as progress:
            making.make(sys.stdout.buffer, secrets=secrets, progress=progress)
    else:
        _write(Path(file), secrets=secrets)
        size = byte_size(Path(file).stat().st_size)
        click.echo(f"Wrote {file} ({size}). It contains users' data, and only you can read it.", err=True)
    if not secrets:
        click.echo("It does not contain the server's token. To include it, add --secrets.", err=True)
    if get_settings().store_url:
        click.echo("It does not contain files that only the object store (LATHE_STORE_URL) has.", err=True)


def restore(*, file: str) -> None:
    """Restores `file` into the empty installation, and prints how many runs continue."""
    settings = get_settings()
    settings.make_folders()
    with only_one(settings), click.open_file(file, "rb") as source, _shown("Restore") as progress:
        running = restoring.restore(source, file, progress=progress)
    click.echo(f"Restored {file} into {settings.data_dir}. Start Lathe now: lathe up")
    if running:
        click.echo(f"{numbers.plural(running, 'run', 'runs')} will continue from the last complete checkpoint.")


def _write(target: Path, *, secrets: bool) -> None:
    if target.exists():
        raise CommandError("FILE", str(target), "exists already.", "Give the name of a new file.")
    with _shown("Backup") as progress, whole_file(target) as part:
        part.touch(mode=0o600)
        with part.open("wb") as stream:
            making.make(stream, secrets=secrets, progress=progress)
        sync(part)


@contextmanager
def _shown(name: str) -> Iterator[making.Progress]:
    """Shows the share that is done on the terminal."""
    line, ended = Progress(name), "failed"
    try:
        yield lambda done, total, what: line.show(min(done / max(total, 1), 1.0), what)
        ended = "done"
    finally:
        line.close(ended)
