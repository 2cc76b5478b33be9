"""Restores a backup into an empty data folder and an empty database."""

import tarfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from pydantic import ValidationError
from sqlalchemy import delete
from sqlmodel import Session, select

from training.errors import UserError
from training.files import check_free_space, scratch
from worker.backups import contents, database_copy
from worker.backups.making import Progress
from worker.machine.sizes import entries
from worker.settings import get_settings
from worker.store import claims, database, schema, served_models
from worker.store.tables import Build, Evaluation, Machine, Run, ServedModel, Status
from worker.store.work import BUILD, EVALUATION, SERVED

_FIX = "Give a file that `lathe backup` wrote."
_LONGEST_FACTS = 10_000  # bytes


class NotRestored(UserError):  # noqa: N818
    """The backup cannot be restored; nothing was changed."""


def restore(source: IO[bytes], name: str, *, progress: Progress) -> int:
    """Restores the backup in the stream `source`, which messages call `name`, and queues the runs that were running.

    Returns the number of these runs.

    Raises:
        NotRestored: it is no backup, is incomplete or of a newer version, or there are runs or data sets here already.
        OSError: it cannot be read, or does not fit on the disk.
    """
    settings = get_settings()
    settings.make_folders()
    _check_empty()
    with scratch(settings.data_dir / "restored") as folder:
        made_at = _extract(source, name, folder, progress)
        _put(folder, settings.data_dir, progress)
    with database.write() as session:
        return _let_go(session, made_at)


def _put(folder: Path, home: Path, progress: Progress) -> None:
    """Moves what was unpacked to its place, all or nothing."""
    with ExitStack() as undo:
        for kept in contents.FOLDERS:
            if (folder / kept).is_dir():
                (home / kept).mkdir(exist_ok=True)
                (home / kept).rmdir()
                (folder / kept).rename(home / kept)
                undo.callback((home / kept).rename, folder / kept)
        database.dispose()
        database_copy.from_file(folder / contents.DATABASE, lambda table: progress(1, 1, f"table {table}"))
        undo.pop_all()
    if (folder / contents.TOKEN).is_file():
        (folder / contents.TOKEN).rename(home / contents.TOKEN)


def _check_empty() -> None:
    settings = get_settings()
    if database_copy.has_rows():
        fix = "Set LATHE_DATABASE_URL to an empty database, or LATHE_DATA_DIR to an empty folder."
        raise NotRestored("database", settings.database_url or str(settings.data_dir), "is not empty.", fix)
    for name in contents.FOLDERS:
        if entries(settings.data_dir / name):
            message = f"is not empty: it has {name}."
            raise NotRestored("LATHE_DATA_DIR", str(settings.data_dir), message, "Set it to an empty folder.")


def _extract(source: IO[bytes], name: str, folder: Path, progress: Progress) -> float:
    """Unpacks the backup, updates its tables, and returns when it was made, in seconds since the epoch."""
    names: set[str] = set()
    try:
        with tarfile.open(fileobj=source, mode="r|") as tar:
            facts = _facts(name, tar)
            while member := tar.next():
                if not (member.isreg() or member.isdir()):
                    raise ValueError(f"{member.name!r} is neither a file nor a folder")
                progress(member.offset, facts.bytes, member.name)
                tar.extract(member, folder, filter="data")
                names.add(member.name)
        if not {contents.END, contents.DATABASE} <= names:
            raise ValueError("its end is missing")
        database_copy.update(folder / contents.DATABASE, facts.tables)
    except (tarfile.TarError, ValueError) as error:
        raise NotRestored("FILE", name, f"is not a complete backup: {error}.", _FIX) from None
    return facts.made_at


def _facts(name: str, tar: tarfile.TarFile) -> contents.Facts:
    """What the backup says of itself. Checks that it fits on the disk."""
    first = tar.next()
    stream = tar.extractfile(first) if first and first.name == contents.FACTS else None
    try:
        facts = contents.Facts.model_validate_json(stream.read(_LONGEST_FACTS) if stream else b"")
    except ValidationError:
        raise NotRestored("FILE", name, "is not a backup of Lathe.", _FIX) from None
    if facts.format > contents.FORMAT or facts.tables not in schema.revisions():
        raise NotRestored("FILE", name, "is of a newer version of Lathe.", f"Install Lathe {facts.version} or later.")
    check_free_space(get_settings().data_dir, facts.bytes, "the backup")
    return facts


def _let_go(session: Session, made_at: float) -> int:
    """Takes the work from the processes that held it when the backup was made, without counting it as failed."""
    reason = f"Restored from a backup of {time.strftime('%Y-%m-%d %H:%M', time.localtime(made_at))}."
    running = session.exec(select(Run).where(Run.status == Status.RUNNING)).all()
    for run in running:
        goes_on = f"{reason} It continues from its last complete checkpoint."
        claims.requeue(session=session, run_id=run.id, attempt=run.attempt, reason=goes_on, outcome="starved")
    for build in session.exec(select(Build).where(BUILD.held)).all():
        BUILD.requeue(session, build, reason)
    for evaluation in session.exec(select(Evaluation).where(EVALUATION.held)).all():
        EVALUATION.requeue(session, evaluation, reason)
    for served in session.exec(select(ServedModel).where(SERVED.held)).all():
        served_models.finish(session=session, served_id=served.id, reason=reason)
    session.exec(delete(Machine))
    return len(running)
