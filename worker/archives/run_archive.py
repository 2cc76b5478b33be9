"""A whole run as one ZIP file that another Lathe imports: its row, attempts, metrics, events, log, samples, evaluations and result.

Checkpoints, tokens and the merged model are not in it. Everything but the result comes from the database, where secrets are
redacted.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

from sqlmodel import Session, SQLModel, col, select

from training.config import json_text
from training.run_folder.paths import ANSWERS_FILE, LINEAGE_FILE, saved_result
from training.scoring.overlap import Overlap
from training.scoring.request import EVALUATIONS_FOLDER, RECORDS_FILE, EvaluationRequest
from worker.allowed_paths import AllowedPaths
from worker.sent_code import refuse_code
from worker.settings import get_settings
from worker.store import database, runs
from worker.store.runs import NotEnded
from worker.store.tables import Attempt, Evaluation, LogLine, Metric, MetricRollup, Run, RunEvent, Sample, Status
from worker.store.tables.shapes import EvaluationSummary

SCHEMA = 1
ROW_FILE = "lathe-run.json"
FILES = "files/"
TABLES: dict[str, type[SQLModel]] = {
    "attempts.jsonl": Attempt,
    "metrics.jsonl": Metric,
    "rollups.jsonl": MetricRollup,
    "events.jsonl": RunEvent,
    "log.jsonl": LogLine,
    "samples.jsonl": Sample,
}
"""The members of an archive with rows, one JSON object a line, and their tables."""
ADDED = {"samples.jsonl"}
"""Members that earlier versions do not know: an archive without such rows has none."""
EVALUATIONS = "evaluations.jsonl"
"""The member with the evaluations, which archives of earlier versions lack."""
LOOSE_FILES = (ANSWERS_FILE, LINEAGE_FILE)
RESULT_ENDINGS = {".safetensors", ".json", ".jinja", ".txt", ".md", ".model"}
"""Files of a result that an archive contains; formats that can run code are not among them."""
RUN_FIELDS = (
    "id", "name", "status", "tags", "notes", "config", "dataset_id", "fingerprints", "parent_id", "created_at", "queued_at",
    "started_at", "finished_at", "attempt", "phase", "step", "total_steps", "seconds_per_step", "final_loss", "best_loss",
    "diverged", "peak_bytes", "plan", "summary", "forecast", "error", "stepped_down",
)  # fmt: skip
_EVALUATION_FIELDS = (
    "id", "status", "created_at", "started_at", "finished_at", "attempt", "overlap", "summary", "error", "reason",
)  # fmt: skip
_OF_THIS_MACHINE = {"path": "", "prompt_set": ""}  # of an evaluation's request
_OWN_KEYS = {"id", "run_id"}  # of rows: another database numbers them itself
_BATCH, _CHUNK_BYTES = 2000, 4 * 2**20


class _Output:
    """A file for ZipFile that keeps what was written until it is taken."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._parts.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        """Does nothing: `take` empties the buffer."""

    def close(self) -> None:
        """Does nothing; ZipFile does not close what it was given."""

    def take(self) -> bytes:
        parts, self._parts = self._parts, []
        return b"".join(parts)


def packed(run_id: str) -> Iterator[bytes]:
    """The archive of an ended run, in chunks.

    Raises:
        RunNotFound: no run has this id.
        NotEnded: it is queued or running. Both before the first chunk.
    """
    with database.read() as session:
        run = runs.get(session=session, run_id=run_id)
    if not run.status.ended:
        fix = "Archive it when it has ended, or stop it first."
        raise NotEnded("run", run.id, f"is {run.status.value}.", fix)
    return _chunks(run)


def archive_files(run_dir: Path) -> Iterator[tuple[str, Path]]:
    """The files of a run that its archive contains, each with its name there."""
    result = saved_result(run_dir)
    files = sorted(result.rglob("*")) if result else []
    files = [path for path in files if path.suffix in RESULT_ENDINGS]
    for path in [*(run_dir / name for name in LOOSE_FILES), *_answers(run_dir), *files]:
        if path.is_file():
            yield FILES + path.relative_to(run_dir).as_posix(), path


def _chunks(run: Run) -> Iterator[bytes]:
    output = _Output()
    with ZipFile(output, "w") as target:
        with target.open(_member(ROW_FILE), "w") as stream:
            document = {"schema": SCHEMA, "run": run.model_dump(mode="json", include=set(RUN_FIELDS))}
            stream.write(json.dumps(document, ensure_ascii=False, indent=1).encode())
        for name, table in TABLES.items():
            if name in ADDED and not _has_rows(table, run.id):
                continue
            with target.open(_member(name), "w", force_zip64=True) as stream, database.read() as session:
                # Compressed in memory: a slow download must not keep the database's session open.
                for lines in _lines(session, table, run.id):
                    stream.write(lines)
            yield output.take()
        with database.read() as session:
            evaluated = _evaluations(session, run.id)
        if evaluated:  # earlier versions do not know this member
            with target.open(_member(EVALUATIONS), "w") as stream:
                stream.write(evaluated)
        for name, path in archive_files(get_settings().runs_dir / run.id):
            # Weights do not shrink, so the files of the result are only stored.
            with path.open("rb") as source, target.open(_member(name, ZIP_STORED), "w", force_zip64=True) as stream:
                while chunk := source.read(_CHUNK_BYTES):
                    stream.write(chunk)
                    yield output.take()
    yield output.take()


def _lines(session: Session, table: type[SQLModel], run_id: str) -> Iterator[bytes]:
    """The run's rows of a table, as JSON lines without the keys of this database."""
    columns: Any = table
    keys = list(table.__table__.primary_key.columns)  # type: ignore[attr-defined]
    rows_of_run = select(table).where(columns.run_id == run_id).order_by(*keys)
    for rows in session.exec(rows_of_run).yield_per(_BATCH).partitions():
        values = (row.model_dump(mode="json", exclude=_OWN_KEYS) for row in rows)
        yield "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in values).encode()


def _has_rows(table: type[SQLModel], run_id: str) -> bool:
    columns: Any = table
    with database.read() as session:
        return session.exec(select(columns.run_id).where(columns.run_id == run_id).limit(1)).first() is not None


def _member(name: str, compression: int = ZIP_DEFLATED) -> ZipInfo:
    entry = ZipInfo(name)
    entry.compress_type = compression
    return entry


def _evaluations(session: Session, run_id: str) -> bytes:
    """The ended evaluations of a run as JSON lines; empty without any."""
    of_run = select(Evaluation).where(Evaluation.run_id == run_id).order_by(col(Evaluation.id))
    ended = (item for item in session.exec(of_run) if item.status.ended)
    return b"".join(json.dumps(_values(item), ensure_ascii=False).encode() + b"\n" for item in ended)


def _answers(run_dir: Path) -> Iterator[Path]:
    """The answers of all evaluations."""
    return iter(sorted((run_dir / EVALUATIONS_FOLDER).glob(f"*/{RECORDS_FILE}")))


def is_answers(name: str) -> bool:
    """True if a file of this name, within the run's folder, has the answers of an evaluation."""
    parts = PurePosixPath(name).parts
    if len(parts) != 3 or PurePosixPath(name).as_posix() != name:
        return False
    folder, evaluation_id, file = parts
    return (folder, file) == (EVALUATIONS_FOLDER, RECORDS_FILE) and evaluation_id.isascii() and evaluation_id.isalnum()


def restore_evaluations(
    session: Session, lines: Iterable[bytes], run_id: str, owner: str, folder: Path, allowed: AllowedPaths
) -> None:
    """Adds the evaluations to an imported run, whose files are in `folder`. They keep their ids unless these are taken.

    Raises:
        ValueError: a line is not an ended evaluation.
        ConfigError: an evaluation has code, which `allowed` does not allow.
    """
    for line in lines:
        values = json_text.load(line)
        refuse_code(values["request"], allowed)
        request = EvaluationRequest.model_validate(values["request"] | _OF_THIS_MACHINE).model_dump(mode="json")
        own = {"run_id": run_id, "owner": owner, "request": request}
        item = Evaluation.model_validate({name: values[name] for name in _EVALUATION_FIELDS} | own)
        if not Status(item.status).ended or not (item.id.isascii() and item.id.isalnum()):
            raise ValueError("an evaluation has not ended, or has no valid id")
        if item.summary is not None:
            item.summary = EvaluationSummary.model_validate(item.summary).model_dump(exclude_unset=True)
        if item.overlap is not None and "problem" not in item.overlap:
            item.overlap = vars(Overlap(**item.overlap))
        known, answers = item.id, folder / EVALUATIONS_FOLDER
        if session.get(Evaluation, item.id):
            item.id = runs.new_id()
            if (answers / known).is_dir():
                (answers / known).rename(answers / item.id)
        session.add(item)
        session.flush()


def _values(item: Evaluation) -> dict[str, Any]:
    """A row without what belongs to this machine; the request without the path of the data."""
    request = item.request | _OF_THIS_MACHINE
    return item.model_dump(mode="json", include=set(_EVALUATION_FIELDS)) | {"request": request}
