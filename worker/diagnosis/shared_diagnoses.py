"""Diagnoses of logs that users share: one JSON file each, with the redacted log, in the data folder.

Files and not a table: a shared diagnosis is written once, read by its id, and never joined or searched; and a log of a MiB does not
belong into a row.
"""

import json
import re
import secrets
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from training.errors import Conflict, NotFound
from training.files import write_whole
from training.redaction import clean, redact_all
from worker.settings import get_settings

LOG_BYTES = 2**20
"""The longest log that is stored; of a longer one the start and the end."""

MOST = 50
"""Shared diagnoses of one owner."""

_HEAD_BYTES = LOG_BYTES // 4
_ID = re.compile(r"[0-9a-f]{16}")


class DiagnosisNotFound(NotFound):
    """No shared diagnosis has this id."""


class TooManyShared(Conflict):
    """The owner has shared as many diagnoses as an owner may."""


@dataclass(frozen=True)
class SharedDiagnosis:
    """A shared diagnosis: the document of `worker.diagnosis.diagnosis`, and the redacted log. `created_at` is in epoch seconds."""

    id: str
    owner: str
    created_at: float
    diagnosis: dict[str, Any]
    log: str


def share(*, diagnosis: dict[str, Any], log: str, owner: str) -> SharedDiagnosis:
    """Stores a diagnosis with its log, both without secrets.

    Raises:
        TooManyShared: the owner has to delete one first.
    """
    mine = sum(known.owner == owner for known in listing())
    if mine >= MOST:
        message = f"cannot be shared: {mine} logs of yours are shared already, and {MOST} may be."
        raise TooManyShared("log", None, message, "Delete one of them: open its page, then press Delete.")
    shared = SharedDiagnosis(secrets.token_hex(8), owner, time.time(), redact_all(diagnosis), shortened(log))
    folder = _folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_whole(_file(shared.id), json.dumps(asdict(shared)))
    return shared


def get(diagnosis_id: str) -> SharedDiagnosis:
    """The shared diagnosis with this id. Raises DiagnosisNotFound if there is none."""
    shared = _read(_file(diagnosis_id)) if _ID.fullmatch(diagnosis_id) else None
    if shared is None:
        message = "does not exist, or was deleted."
        raise DiagnosisNotFound("diagnosis", diagnosis_id, message, "Ask who shared it for the log.")
    return shared


def delete(diagnosis_id: str) -> None:
    """Deletes a shared diagnosis. Raises DiagnosisNotFound if there is none."""
    _file(get(diagnosis_id).id).unlink(missing_ok=True)


def listing(limit: int | None = None) -> list[SharedDiagnosis]:
    """The shared diagnoses, newest first."""
    times = {}
    for path in _folder().glob("*.json"):
        try:
            times[path] = path.stat().st_mtime
        except FileNotFoundError:  # deleted meanwhile
            continue
    newest = sorted(times, key=lambda path: times[path], reverse=True)[:limit]
    return [shared for path in newest if (shared := _read(path)) is not None]


def shortened(log: str) -> str:
    """The log as it is stored: without secrets and color codes; of a long one the start and the end."""
    text = "\n".join(clean(line) for line in log.split("\n"))
    raw = text.encode()
    if len(raw) <= LOG_BYTES:
        return text
    tail = LOG_BYTES - _HEAD_BYTES
    left_out = f"\n... {len(raw) - LOG_BYTES:,} bytes left out ...\n"
    return raw[:_HEAD_BYTES].decode(errors="ignore") + left_out + raw[-tail:].decode(errors="ignore")


def _folder() -> Path:
    return get_settings().data_dir / "diagnoses"


def _file(diagnosis_id: str) -> Path:
    return _folder() / f"{diagnosis_id}.json"


def _read(path: Path) -> SharedDiagnosis | None:
    try:
        return SharedDiagnosis(**json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, TypeError):
        return None
