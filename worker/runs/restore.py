"""Imports a run from its archive. A broken archive changes nothing: all of it is read and checked before anything is stored."""

import errno
import shutil
import stat
import struct
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from pydantic import ValidationError
from sqlalchemy import insert
from sqlalchemy.exc import DataError, IntegrityError
from sqlmodel import Session, SQLModel

from training.config import json_text
from training.config.fields import ConfigError, parse
from training.errors import UserError
from training.run_folder.events import Finished, encode
from training.run_folder.lineage import Lineage
from training.run_folder.paths import CONFIG_FILE, EVENTS_FILE, result_dir
from training.units import byte_size
from worker import disk_quota
from worker.disk_quota import DiskQuota
from worker.machine.sizes import size_of
from worker.runs import archive, archived_adapter, archived_evaluations
from worker.runs.run_archive import FILES, LOOSE_FILES, RESULT_ENDINGS, ROW_FILE, RUN_FIELDS, SCHEMA, TABLES
from worker.settings import get_settings
from worker.store import database, runs
from worker.store.tables import LOCAL, Dataset, Run, Status
from worker.store.tables.run_values import RunValues

_MOST_MEMBERS = 10_000
_DEEPEST_FOLDER, _LONGEST_NAME = 10, 200
_UNSUSPECTED_BYTES, _LARGEST_RATIO = 64 * 2**20, 100
_MOST_ROW_BYTES = 64 * 2**20
_MOST_LINE_BYTES = 2**20
_SPARE_BYTES = 256 * 2**20
_BATCH = 2000
_FIX = "Make a new archive with `lathe archive RUN FILE`."


class BadArchive(UserError):  # noqa: N818
    """A file that is not the archive of a run, or a broken one."""


def restore(path: Path, *, owner: str = LOCAL) -> Run:
    """Imports the run in an archive; it belongs to `owner`, and keeps its id unless another run has it.

    Raises:
        BadArchive: the file is no archive of a run, is broken, or does not fit on the disk or into the owner's quota.
        OSError: it cannot be read.
    """
    runs_dir, quota = get_settings().runs_dir, disk_quota.measured(owner)
    part = Path(tempfile.mkdtemp(prefix=".restore-", dir=runs_dir))
    try:
        with ZipFile(path) as source:
            members = _checked_members(path, source, quota)
            run = _run(path, source, owner)
            for fault in archived_adapter.faults(source, members, parse(run.config)):
                raise BadArchive("FILE", str(path), fault, _FIX)
            _extract(source, members, part)
            return _store(path, source, run, part, quota)
    except (BadZipFile, NotImplementedError, EOFError, RuntimeError, zlib.error, struct.error) as error:
        raise BadArchive("FILE", str(path), f"is not a complete ZIP file: {error}.", _FIX) from None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, IntegrityError, DataError) as error:
        raise BadArchive("FILE", str(path), f"has a wrong value: {_first_line(error)}.", _FIX) from None
    except OSError as error:
        if error.errno != errno.EINVAL:  # a member begins before the file
            raise
        raise BadArchive("FILE", str(path), "is not a complete ZIP file.", _FIX) from None
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _checked_members(path: Path, source: ZipFile, quota: DiskQuota) -> list[ZipInfo]:
    """The files of the run's folder, after checks of all names and sizes."""
    members = source.infolist()
    names = [member.filename for member in members]
    if ROW_FILE not in names:
        raise BadArchive("FILE", str(path), f"is not the archive of a run: it has no {ROW_FILE}.", _FIX)
    if len(members) > _MOST_MEMBERS or len(set(names)) < len(names):
        raise BadArchive("FILE", str(path), "has too many files, or one twice.", _FIX)
    files = [member for member in members if member.filename not in (ROW_FILE, archived_evaluations.MEMBER, *TABLES)]
    for member in files:
        if not _is_expected(member):
            raise BadArchive("FILE", str(path), f"has a file that no run has: {member.filename[:200]!r}.", _FIX)
    folders = {str(parent) for member in files for parent in PurePosixPath(member.filename).parents}
    if twice := folders.intersection(names):
        raise BadArchive("FILE", str(path), f"has a file and a folder of one name: {min(twice)!r}.", _FIX)
    if any(member.compress_type not in (ZIP_STORED, ZIP_DEFLATED) for member in members):
        raise BadArchive("FILE", str(path), "is compressed with another method than Deflate.", _FIX)
    size, packed = sum(member.file_size for member in members), sum(member.compress_size for member in members)
    packed = min(packed, path.stat().st_size)  # members may overlap
    if size > _UNSUSPECTED_BYTES and size > _LARGEST_RATIO * packed:
        message = f"would become {size / max(packed, 1):,.0f} times as large ({byte_size(size)})."
        raise BadArchive("FILE", str(path), message, _FIX)
    # The result is packed for download once more.
    needed = 2 * size + _SPARE_BYTES
    free = shutil.disk_usage(get_settings().runs_dir).free
    if needed > free:
        message = f"needs {byte_size(needed)} of disk space, and {byte_size(free)} are free."
        raise BadArchive("FILE", str(path), message, "Free disk space, or set LATHE_DATA_DIR to a larger disk.")
    _refuse_over(quota, size, path)
    return files


def _refuse_over(quota: DiskQuota, size: int, path: Path) -> None:
    if message := quota.refusal(size):
        raise BadArchive("FILE", str(path), message, disk_quota.FIX)


def _is_expected(member: ZipInfo) -> bool:
    """True for answers, the lineage, and files of the result; never for a path outside the run's folder, or a link."""
    name = member.filename.removeprefix(FILES)
    parts = PurePosixPath(name).parts
    if len(parts) > _DEEPEST_FOLDER or any(len(part.encode()) > _LONGEST_NAME for part in parts):
        return False
    if name == member.filename or "\\" in name or ".." in parts or stat.S_ISLNK(member.external_attr >> 16):
        return False
    if name in LOOSE_FILES or archived_evaluations.is_file(name):
        return True
    in_result = len(parts) > 1 and parts[0] in (result_dir(Path(), adapts=adapts).name for adapts in (True, False))
    return in_result and PurePosixPath(name).as_posix() == name and PurePosixPath(name).suffix in RESULT_ENDINGS


def _run(path: Path, source: ZipFile, owner: str) -> Run:
    if source.getinfo(ROW_FILE).file_size > _MOST_ROW_BYTES:
        raise BadArchive("FILE", str(path), f"has a {ROW_FILE} above {byte_size(_MOST_ROW_BYTES)}.", _FIX)
    document = json_text.load(source.read(ROW_FILE))
    if document["schema"] != SCHEMA:
        message = f"has schema {document['schema']!r}; this Lathe reads schema {SCHEMA}."
        raise BadArchive(
            "FILE", str(path), message, "Import it with the version of Lathe that made it, or a newer one."
        )
    try:
        values = {name: document["run"][name] for name in RUN_FIELDS}
        parse(values["config"] | values["stepped_down"])
        values["config"] = parse(values["config"]).model_dump(mode="json")
        RunValues.model_validate(values)
        run = Run.model_validate(values | {"owner": owner})
    except ConfigError as error:
        raise BadArchive("FILE", str(path), f"has a configuration that this Lathe refuses: {error}", _FIX) from None
    if not Status(run.status).ended or not (run.id.isascii() and run.id.isalnum()):
        raise BadArchive("FILE", str(path), "has a run that has not ended, or without a valid id.", _FIX)
    return run


def _extract(source: ZipFile, members: list[ZipInfo], folder: Path) -> None:
    for member in members:
        target = folder / member.filename.removeprefix(FILES)
        target.parent.mkdir(parents=True, exist_ok=True)
        with source.open(member) as packed, target.open("wb") as stream:
            shutil.copyfileobj(packed, stream, 4 * 2**20)


def _store(path: Path, source: ZipFile, run: Run, part: Path, quota: DiskQuota) -> Run:
    """Stores the rows, and moves the folder to its place as the last step of the transaction."""
    with database.read_everything() as session:
        if session.get(Run, run.id) or (part.parent / run.id).exists():
            run.id = runs.new_id()
    with database.read() as session:
        run.dataset_id = run.dataset_id if session.get(Dataset, run.dataset_id or "") else None
    _write_folder(run, part)
    target = part.parent / run.id
    try:
        with database.write() as session:
            session.add(run)
            session.flush()
            for name, table in TABLES.items():
                _insert(path, source, session, name, table, run.id)
            if archived_evaluations.MEMBER in source.namelist():
                found = _read_lines(source, archived_evaluations.MEMBER)
                archived_evaluations.restore(session, found, run.id, run.owner, part)
            _refuse_over(quota.again(session), size_of(part).bytes, path)
            part.replace(target)
    except BaseException:
        if not part.exists():
            shutil.rmtree(target, ignore_errors=True)
        raise
    return run


def _write_folder(run: Run, folder: Path) -> None:
    """Writes the files that follow from the run's row, and packs its result for download."""
    (folder / CONFIG_FILE).write_text(parse(run.config).model_dump_json(indent=2), encoding="utf-8")
    replace(Lineage.read(folder), run=run.id).write(folder)
    ended = Finished(outcome=run.status, step=run.step, summary=run.summary or {})
    (folder / EVENTS_FILE).write_bytes(encode(ended) if run.status is Status.FINISHED else b"")
    run.event_offset, run.node_offsets = (folder / EVENTS_FILE).stat().st_size, {}
    run.job_id = run.job = None
    archive.pack_results(folder, lambda: None)


def _insert(path: Path, source: ZipFile, session: Session, name: str, table: type[SQLModel], run_id: str) -> None:
    batch: list[dict[str, Any]] = []
    for number, line in enumerate(_read_lines(source, name), start=1):
        try:
            row = table.model_validate(json_text.load(line) | {"run_id": run_id})
        except (ValidationError, ValueError, TypeError) as error:
            raise BadArchive(
                "FILE", str(path), f"has a wrong line {number} in {name}: {_first_line(error)}.", _FIX
            ) from None
        batch.append(row.model_dump(exclude={"id"}))
        if len(batch) == _BATCH:
            session.exec(insert(table), params=batch)
            batch = []
    if batch:
        session.exec(insert(table), params=batch)


def _read_lines(source: ZipFile, name: str) -> Iterator[bytes]:
    with source.open(name) as stream:
        while line := stream.readline(_MOST_LINE_BYTES + 1):
            if len(line) > _MOST_LINE_BYTES:
                raise ValueError(f"a line of {name} is longer than {byte_size(_MOST_LINE_BYTES)}")
            yield line


def _first_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"[:200]
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
