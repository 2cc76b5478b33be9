"""Diagnoses of logs that users share: one JSON file each, with the redacted log, in the data folder.

Files and not a table: a shared diagnosis is written once, read by its id, and never joined or searched; and a log of a MiB does not
belong into a row.
"""

import json
import re
import secrets
import time
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from training.errors import Conflict, NotFound
from training.files import locked, write_whole
from training.redaction import clean, redact_all
from worker.settings import get_settings

LOG_BYTES = 2**20
"""The longest log that is stored; of a longer one the start and the end."""

MOST = 50
"""Shared diagnoses of one owner."""

_HEAD_BYTES = LOG_BYTES // 4
_LOCK = ".lock"
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
    shared = SharedDiagnosis(secrets.token_hex(8), owner, time.time(), redact_all(diagnosis), shortened(log))
    text = json.dumps(asdict(shared))
    with locked(_folder() / _LOCK):
        mine = sum(known.owner == owner for known in listing())
        if mine >= MOST:
            message = f"cannot be shared: {mine} logs of yours are shared already, and {MOST} may be."
            raise TooManyShared("log", None, message, "Delete one of them: open its page, then press Delete.")
        write_whole(_file(shared.id), text)
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


@dataclass(frozen=True)
class Listed:
    """What lists show of a shared diagnosis."""

    id: str
    owner: str
    created_at: float
    title: str
    cause: str


def listing() -> list[Listed]:
    """The shared diagnoses, newest first."""
    times = {}
    for path in _folder().glob("*.json"):
        try:
            times[path] = path.stat().st_mtime_ns
        except FileNotFoundError:  # deleted meanwhile
            continue
    newest = sorted(times, key=lambda path: times[path], reverse=True)
    return [listed for path in newest if (listed := _listed(path, times[path])) is not None]


@lru_cache(maxsize=10_000)
def _listed(path: Path, _modified: int) -> Listed | None:
    """Kept, since a file has the whole log, and each view of the page Diagnose needs one line of each file."""
    if (shared := _read(path)) is None:
        return None
    try:
        title, cause = (str(shared.diagnosis[name]) for name in ("title", "cause"))
    except (KeyError, TypeError):  # a damaged file
        return None
    return Listed(shared.id, shared.owner, shared.created_at, title, cause)


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
