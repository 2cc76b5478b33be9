"""A whole run as one ZIP file that another Lathe imports: its row, attempts, metrics, events, log, evaluations and result.

Checkpoints, tokens and the merged model are not in it. Everything but the result comes from the database, where secrets are
redacted.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

from sqlmodel import Session, SQLModel, select

from training.run_folder.paths import ANSWERS_FILE, LINEAGE_FILE, saved_result
from worker.runs import archived_evaluations
from worker.settings import get_settings
from worker.store import database, runs
from worker.store.runs import NotEnded
from worker.store.tables import Attempt, LogLine, Metric, MetricRollup, Run, RunEvent

SCHEMA = 1
ROW_FILE = "lathe-run.json"
FILES = "files/"
TABLES: dict[str, type[SQLModel]] = {
    "attempts.jsonl": Attempt,
    "metrics.jsonl": Metric,
    "rollups.jsonl": MetricRollup,
    "events.jsonl": RunEvent,
    "log.jsonl": LogLine,
}
"""The members of an archive with rows, one JSON object a line, and their tables."""
LOOSE_FILES = (ANSWERS_FILE, LINEAGE_FILE)
RESULT_ENDINGS = {".safetensors", ".json", ".jinja", ".txt", ".md", ".model"}
"""Files of a result that an archive contains; formats that can run code are not among them."""
RUN_FIELDS = (
    "id", "name", "status", "tags", "notes", "config", "dataset_id", "fingerprints", "parent_id", "created_at", "queued_at",
    "started_at", "finished_at", "attempt", "phase", "step", "total_steps", "seconds_per_step", "final_loss", "best_loss",
    "diverged", "peak_bytes", "plan", "summary", "forecast", "error", "stepped_down",
)  # fmt: skip
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
    found = sorted(result.rglob("*")) if result else []
    found = [path for path in found if path.suffix in RESULT_ENDINGS]
    for path in [*(run_dir / name for name in LOOSE_FILES), *archived_evaluations.files(run_dir), *found]:
        if path.is_file():
            yield FILES + path.relative_to(run_dir).as_posix(), path


def _chunks(run: Run) -> Iterator[bytes]:
    output = _Output()
    with ZipFile(output, "w") as target:
        with target.open(_member(ROW_FILE), "w") as stream:
            stream.write(_row(run))
        for name, table in TABLES.items():
            with target.open(_member(name), "w", force_zip64=True) as stream, database.read() as session:
                for lines in _lines(session, table, run.id):
                    stream.write(
                        lines
                    )  # compressed in memory: a slow download must not keep the database's session open
            yield output.take()
        with database.read() as session:
            evaluated = archived_evaluations.lines(session, run.id)
        if evaluated:  # earlier versions do not know this member
            with target.open(_member(archived_evaluations.MEMBER), "w") as stream:
                stream.write(evaluated)
        for name, path in archive_files(get_settings().runs_dir / run.id):
            with path.open("rb") as source, target.open(_stored(name), "w", force_zip64=True) as stream:
                while chunk := source.read(_CHUNK_BYTES):
                    stream.write(chunk)
                    yield output.take()
    yield output.take()


def _row(run: Run) -> bytes:
    values = run.model_dump(mode="json", include=set(RUN_FIELDS))
    return json.dumps({"schema": SCHEMA, "run": values}, ensure_ascii=False, indent=1).encode()


def _lines(session: Session, table: type[SQLModel], run_id: str) -> Iterator[bytes]:
    """The run's rows of a table, as JSON lines without the keys of this database."""
    columns: Any = table
    keys = list(table.__table__.primary_key.columns)  # type: ignore[attr-defined]
    wanted = select(table).where(columns.run_id == run_id).order_by(*keys)
    for rows in session.exec(wanted).yield_per(_BATCH).partitions():
        values = (row.model_dump(mode="json", exclude=_OWN_KEYS) for row in rows)
        yield "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in values).encode()


def _member(name: str) -> ZipInfo:
    entry = ZipInfo(name)
    entry.compress_type = ZIP_DEFLATED
    return entry


def _stored(name: str) -> ZipInfo:
    entry = ZipInfo(name)
    entry.compress_type = ZIP_STORED  # weights do not shrink
    return entry
