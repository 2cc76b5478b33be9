"""Imports a run from its archive. A broken archive changes nothing: all of it is read and checked before anything is stored."""

import errno
import json
import shutil
import stat
import struct
import zlib
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any
from zipfile import BadZipFile, ZipFile, ZipInfo

from pydantic import ValidationError
from sqlalchemy import func, insert
from sqlalchemy.exc import DataError, IntegrityError
from sqlmodel import Session, SQLModel, col, select

from training import redaction
from training.config import json_text
from training.config.choices import Method
from training.config.fields import ConfigError, parse
from training.config.run_config import RunConfig
from training.data.files import zip_files
from training.errors import UserError
from training.files import scratch
from training.model_info.folder import ADAPTER_CONFIG
from training.run_folder.events import FINISHED, Finished, encode
from training.run_folder.paths import CONFIG_FILE, EVENTS_FILE, result_dir
from training.run_folder.record import Lineage
from training.run_folder.stages import STAGES, UNDONE, Saved
from training.units import byte_size
from worker import disk_quota
from worker.allowed_paths import EVERYTHING, AllowedPaths, named_paths
from worker.archives import run_archive
from worker.disk_quota import DiskQuota
from worker.machine.sizes import size_of
from worker.results import packing
from worker.sent_code import refuse_code
from worker.settings import get_settings
from worker.store import database, runs
from worker.store.tables import LOCAL, Attempt, Dataset, LogLine, Metric, MetricRollup, Run, Status
from worker.store.tables.row import first_problem

_MOST_MEMBERS = 10_000
_DEEPEST_FOLDER, _LONGEST_NAME = 10, 200
_UNSUSPECTED_BYTES, _LARGEST_RATIO = 64 * 2**20, 100
_MOST_ROW_BYTES = 8 * 2**20
_MOST_LINE_BYTES = 2**20
_MOST_BATCH_BYTES = 8 * 2**20
_LONGEST_TEXT = 64_000
"""Characters of a text of a row; training reports shorter ones."""
_MOST_OF_ROW, _LONGEST_IN_ROW = 128 * 1024, 16_000
"""Characters of the run's row without its configuration, and of a text in it: lists read a thousand rows."""
_ATTEMPTS = "attempts.jsonl"
_MOST_BYTES = dict.fromkeys((run_archive.ROW_FILE, run_archive.EVALUATIONS, _ATTEMPTS), _MOST_ROW_BYTES)
"""Of the members whose rows are read as a whole."""
_MOST_ATTEMPTS, _MOST_SERIES = 10_000, 20_000
"""Attempts of a run, and its metrics, of each rank, of which the latest values are read as a whole."""
_SETTINGS = {"config", "stepped_down"}
"""Of the row: each setting has a limit of its own."""
_SPARE_BYTES = 256 * 2**20
_MOST_ADAPTER_BYTES = 2**20
# Lathe gives PEFT the model, so that nothing loads what the first three name; the others are patterns, which may look like a path.
_NAME_NO_FILES = {"base_model_name_or_path", "tokenizer_name_or_path", "revision"} | {
    "target_modules", "exclude_modules", "target_parameters",
}  # fmt: skip
_BATCH = 2000
_FIX = "Make a new archive with `lathe archive RUN FILE`."


class BadArchive(UserError):  # noqa: N818
    """A file that is not the archive of a run, or a broken one."""


class _Refused(Exception):  # noqa: N818
    """What is wrong with the archive, and the fix."""

    def __init__(self, message: str, fix: str = _FIX) -> None:
        super().__init__(message)
        self.fix = fix


def restore(path: Path, *, owner: str = LOCAL, allowed: AllowedPaths = EVERYTHING) -> Run:
    """Imports the run in an archive; it belongs to `owner`, and keeps its id unless another run has it.

    Raises:
        BadArchive: the file is no archive of a run, is broken, does not fit on the disk or into the owner's quota, or has code that
            `allowed` does not allow.
        OSError: it cannot be read.
    """
    runs_dir, quota = get_settings().runs_dir, disk_quota.measured(owner)
    try:
        with scratch(runs_dir / "restored") as folder, zip_files.opened(path) as source:
            part = folder / "run"
            part.mkdir(mode=0o700)
            members = _checked_members(path, source, quota)
            run = _run(source, owner, allowed)
            for fault in _adapter_faults(source, members, parse(run.config)):
                raise _Refused(fault)
            _extract(source, members, part)
            return _store(source, run, part, quota, allowed)
    except _Refused as error:
        raise BadArchive("FILE", str(path), str(error), error.fix) from None
    except ConfigError as error:
        raise BadArchive("FILE", str(path), f"has an evaluation that cannot be imported: {error}", _FIX) from None
    except (BadZipFile, NotImplementedError, EOFError, RuntimeError, zlib.error, struct.error) as error:
        raise BadArchive("FILE", str(path), f"is not a complete ZIP file: {error}.", _FIX) from None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, IntegrityError, DataError) as error:
        raise BadArchive("FILE", str(path), f"has a wrong value: {_first_line(error)}.", _FIX) from None
    except OSError as error:
        if error.errno != errno.EINVAL:  # a member begins before the file
            raise
        raise BadArchive("FILE", str(path), "is not a complete ZIP file.", _FIX) from None


def _checked_members(path: Path, source: ZipFile, quota: DiskQuota) -> list[ZipInfo]:
    """The files of the run's folder, after checks of all names and sizes."""
    members = source.infolist()
    names = [member.filename for member in members]
    if run_archive.ROW_FILE not in names:
        raise _Refused(f"is not the archive of a run: it has no {run_archive.ROW_FILE}.")
    if len(members) > _MOST_MEMBERS or len(set(names)) < len(names):
        raise _Refused("has too many files, or one twice.")
    files = [
        member
        for member in members
        if member.filename not in (run_archive.ROW_FILE, run_archive.EVALUATIONS, *run_archive.TABLES)
    ]
    for member in files:
        if not _is_expected(member):
            raise _Refused(f"has a file that no run has: {member.filename[:200]!r}.")
    folders = {str(parent) for member in files for parent in PurePosixPath(member.filename).parents}
    if twice := folders.intersection(names):
        raise _Refused(f"has a file and a folder of one name: {min(twice)!r}.")
    size, packed = sum(member.file_size for member in members), sum(member.compress_size for member in members)
    packed = min(packed, path.stat().st_size)  # members may overlap
    if size > _UNSUSPECTED_BYTES and size > _LARGEST_RATIO * packed:
        message = f"would become {size / max(packed, 1):,.0f} times as large ({byte_size(size)})."
        raise _Refused(message)
    # The result is packed for download once more.
    needed = 2 * size + _SPARE_BYTES
    free = shutil.disk_usage(get_settings().runs_dir).free
    if needed > free:
        message = f"needs {byte_size(needed)} of disk space, and {byte_size(free)} are free."
        raise _Refused(message, "Free disk space, or set LATHE_DATA_DIR to a larger disk.")
    _refuse_over(quota, size)
    return files


def _refuse_over(quota: DiskQuota, size: int) -> None:
    if message := quota.refusal(size):
        raise _Refused(message, disk_quota.FIX)


def _is_expected(member: ZipInfo) -> bool:
    """True for answers, the lineage, and files of the result; never for a path outside the run's folder, or a link."""
    name = member.filename.removeprefix(run_archive.FILES)
    parts = PurePosixPath(name).parts
    if len(parts) > _DEEPEST_FOLDER or any(len(part.encode()) > _LONGEST_NAME for part in parts):
        return False
    if name == member.filename or "\\" in name or ".." in parts or stat.S_ISLNK(member.external_attr >> 16):
        return False
    if name in run_archive.LOOSE_FILES or run_archive.is_answers(name):
        return True
    in_result = len(parts) > 1 and parts[0] in (result_dir(Path(), adapts=adapts).name for adapts in (True, False))
    return (
        in_result
        and PurePosixPath(name).as_posix() == name
        and PurePosixPath(name).suffix in run_archive.RESULT_ENDINGS
    )


def _adapter_faults(source: ZipFile, members: list[ZipInfo], config: RunConfig) -> Iterator[str]:
    """A sentence for each adapter that is not one of the run's method in the folder of its result, or names other files.

    PEFT and transformers load the files and modules that adapter_config.json names.
    """
    for member in members:
        if not member.filename.endswith(f"/{ADAPTER_CONFIG}"):
            continue
        if member.filename != f"{run_archive.FILES}adapter/{ADAPTER_CONFIG}" or not config.method.adapts:
            yield f"has an adapter that no run of the method {config.method.value} has: {member.filename!r}."
        elif member.file_size > _MOST_ADAPTER_BYTES:
            yield f"has an {ADAPTER_CONFIG} of {member.file_size:,} bytes."
        else:
            yield from _in_values(json_text.load(source.read(member)), config.method)


def _in_values(values: dict[str, object], method: Method) -> Iterator[str]:
    kind = str(values.get("peft_type")).lower()
    if kind != method.in_peft:
        yield f"has an adapter of {kind[:50]}, and its run has the method {method.value}."
    read = {name: value for name, value in values.items() if name not in _NAME_NO_FILES}
    for name, value in named_paths(read):
        yield f"has an adapter that names another file: {name[:50]} {str(value)[:100]!r}."
    if values.get("megatron_config") is not None:  # PEFT then imports the module `megatron_core`
        yield "has an adapter that names a Python module: megatron_config."


def _run(source: ZipFile, owner: str, allowed: AllowedPaths) -> Run:
    for name, most in _MOST_BYTES.items():
        if name in source.namelist() and source.getinfo(name).file_size > most:
            raise _Refused(f"has a {name} above {byte_size(most)}.")
    document = json_text.load(source.read(run_archive.ROW_FILE))
    if document["schema"] != run_archive.SCHEMA:
        message = f"has schema {document['schema']!r}; this Lathe reads schema {run_archive.SCHEMA}."
        raise _Refused(message, "Import it with the version of Lathe that made it, or a newer one.")
    try:
        values = {name: document["run"][name] for name in run_archive.RUN_FIELDS}
        values |= _shortened({name: value for name, value in values.items() if name not in _SETTINGS})
        refuse_code(values, allowed)  # in its config and stepped_down
        parse(values["config"] | values["stepped_down"])
        values["config"] = parse(values["config"]).model_dump(mode="json")
        Run.check(values)
        run = Run.model_validate(values | {"owner": owner})
    except ConfigError as error:
        raise _Refused(f"has a configuration that this Lathe refuses: {error}") from None
    if not Status(run.status).ended or not (run.id.isascii() and run.id.isalnum()):
        raise _Refused("has a run that has not ended, or without a valid id.")
    return run


def _shortened(values: dict[str, Any]) -> dict[str, Any]:
    """The values without the middle of long texts, such as that of a log. Raises _Refused if they are too long all the same."""
    text = json.dumps(values)
    if len(text) > _MOST_OF_ROW:
        values = _without_middles(values)
        text = json.dumps(values)
    if len(text) > _MOST_OF_ROW:
        raise _Refused(f"has a row of {len(text):,} characters, which no run has.")
    return values


def _without_middles(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_middles(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_without_middles(inner) for inner in value]
    if isinstance(value, str) and len(value) > _LONGEST_IN_ROW:
        half = _LONGEST_IN_ROW // 2
        return f"{value[:half]} ... {value[-half:]}"
    return value


def _extract(source: ZipFile, members: list[ZipInfo], folder: Path) -> None:
    for member in members:
        target = folder / member.filename.removeprefix(run_archive.FILES)
        target.parent.mkdir(parents=True, exist_ok=True)
        with source.open(member) as packed, target.open("wb") as stream:
            shutil.copyfileobj(packed, stream, 4 * 2**20)


def _store(source: ZipFile, run: Run, part: Path, quota: DiskQuota, allowed: AllowedPaths) -> Run:
    """Stores the rows, and moves the folder to its place as the last step of the transaction."""
    with database.read_everything() as session:
        if session.get(Run, run.id) or (get_settings().runs_dir / run.id).exists():
            run.id = runs.new_id()
    with database.read() as session:
        run.dataset_id = run.dataset_id if session.get(Dataset, run.dataset_id or "") else None
    _write_folder(run, part)
    target = get_settings().runs_dir / run.id
    try:
        with database.write() as session:
            session.add(run)
            session.flush()
            for name, table in run_archive.TABLES.items():
                if name in run_archive.ADDED and name not in source.namelist():
                    continue
                _insert(source, session, name, table, run.id)
            run.worked_seconds = _worked(session, run.id)
            if run_archive.EVALUATIONS in source.namelist():
                with closing(_read_lines(source, run_archive.EVALUATIONS)) as found:
                    run_archive.restore_evaluations(session, found, run.id, run.owner, part, allowed)
            _refuse_over(quota.again(session), size_of(part).bytes)
            part.replace(target)
    except BaseException:
        if not part.exists():
            shutil.rmtree(target, ignore_errors=True)
        raise
    return run


def _worked(session: Session, run_id: str) -> float:
    """The seconds of the attempts of a run that has ended."""
    lasted = col(Attempt.ended_at) - col(Attempt.started_at)
    return session.exec(select(func.sum(lasted)).where(Attempt.run_id == run_id, lasted > 0)).one() or 0.0


def _write_folder(run: Run, folder: Path) -> None:
    """Writes the files that follow from the run's row, and packs its result for download."""
    (folder / CONFIG_FILE).write_text(parse(run.config).model_dump_json(indent=2), encoding="utf-8")
    replace(Lineage.read(folder), run=run.id).write(folder)
    ended = Finished(outcome=run.status, step=run.step, summary=run.summary or {})
    (folder / EVENTS_FILE).write_bytes(encode(ended) if run.status is Status.FINISHED else b"")
    if undone := run.undone:  # what Resume does
        trained = {name: value for name, value in (run.summary or {}).items() if name != UNDONE}
        Saved(FINISHED, trained, [stage.phase for stage in STAGES if stage.phase not in undone]).write(folder)
    run.event_offset, run.node_offsets = (folder / EVENTS_FILE).stat().st_size, {}
    run.job_id = run.job = None
    packing.pack_results(folder)


def _insert(source: ZipFile, session: Session, name: str, table: type[SQLModel], run_id: str) -> None:
    batch: list[dict[str, Any]] = []
    length, series = 0, set[tuple[str, int]]()
    for number, line in enumerate(_read_lines(source, name), start=1):
        try:
            row = table.model_validate(json_text.load(line) | {"run_id": run_id})
        except (ValidationError, ValueError, TypeError) as error:
            raise _Refused(f"has a wrong line {number} in {name}: {_first_line(error)}.") from None
        series.update([(row.name, row.rank)] if isinstance(row, Metric | MetricRollup) else ())
        if (table is Attempt and number > _MOST_ATTEMPTS) or len(series) > _MOST_SERIES:
            raise _Refused(f"has more rows in {name} than a run has.")
        batch.append({key: _as_reported(table, value) for key, value in row.model_dump(exclude={"id"}).items()})
        length += len(line)
        if len(batch) == _BATCH or length > _MOST_BATCH_BYTES:
            session.exec(insert(table), params=batch)
            batch, length = [], 0
    if batch:
        session.exec(insert(table), params=batch)


def _as_reported(table: type[SQLModel], value: Any) -> Any:
    """A value of a row as training would have reported it: what reads many rows counts on their length."""
    if not isinstance(value, str):
        return value
    return redaction.clean(value) if table is LogLine else value[:_LONGEST_TEXT]


def _read_lines(source: ZipFile, name: str) -> Generator[bytes]:
    with source.open(name) as stream:
        while line := stream.readline(_MOST_LINE_BYTES + 1):
            if len(line) > _MOST_LINE_BYTES:
                raise ValueError(f"a line of {name} is longer than {byte_size(_MOST_LINE_BYTES)}")
            yield line


def _first_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return first_problem(error)[:200]
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
