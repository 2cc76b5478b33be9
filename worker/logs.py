"""What the training process printed: stored a line a row, with secrets taken out."""

import re
import time
from typing import Any

from sqlalchemy import insert, update
from sqlmodel import Session, col, select

from worker.models import LogLine, Run

LONGEST_LINE = 4000  # characters; the whole line is in the run's output.log
LONGEST_READ = 16 * LONGEST_LINE
REDACTED = "[redacted]"
_SECRETS = [
    (re.compile(r"\bhf_[A-Za-z0-9]{8,}"), f"hf_{REDACTED}"),
    (re.compile(r"(?i)\b(authorization[\"']?\s*[:=]\s*[\"']?(?:bearer|basic|token)\s+)[^\s\"',]+"), rf"\1{REDACTED}"),
    (re.compile(r"(?i)\b(bearer\s+)[A-Za-z0-9._~+/-]{12,}=*"), rf"\1{REDACTED}"),
    (re.compile(r"\b([a-zA-Z][a-zA-Z0-9+.-]*://[^\s/:@]*):[^\s/@]+@"), rf"\1:{REDACTED}@"),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), REDACTED),
    (re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|sk-[A-Za-z0-9_-]{20,})"), REDACTED),
    (
        re.compile(r"(?i)((?:secret|password|passwd|api_?key|access_?key|token)[\"']?\s*[=:]\s*[\"']?)[\w+/=.~-]{16,}"),
        rf"\1{REDACTED}",
    ),
]
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")


def redact(text: str) -> str:
    """The text without secrets (hub tokens, keys, credentials in headers and URLs), and without what no database takes."""
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text.replace("\0", "").encode("utf-8", "replace").decode()


def redact_all(value: Any) -> Any:
    """`redact` for every text in a JSON value."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {key: redact_all(item) for key, item in value.items()}
    return [redact_all(item) for item in value] if isinstance(value, list) else value


def append(*, session: Session, run_id: str, attempt: int, lines: list[str], new_offset: int) -> bool:
    """Stores lines together with `new_offset`, the bytes of output.log that are stored then.

    False, with nothing stored, where the attempt is not the current one. Storing the same part again changes nothing.
    """
    current = select(Run.log_offset).where(Run.id == run_id, Run.attempt == attempt).with_for_update()
    offset = session.exec(current).first()
    if offset is None:
        return False
    if new_offset > offset:
        session.exec(update(Run).where(col(Run.id) == run_id).values(log_offset=new_offset))
        now = time.time()
        rows = [{"run_id": run_id, "attempt": attempt, "time": now, "text": clean(line)} for line in lines]
        if rows:
            session.exec(insert(LogLine), params=rows)
    return True


def clean(line: str) -> str:
    """A line as a page shows it: of a progress bar the last state, no colour codes, no secrets, not endless."""
    last = line.rstrip("\r\n").rsplit("\r", 1)[-1]
    # Redacted before it is cut to length: half a token is not recognised.
    shown = redact(ESCAPES.sub("", last[:LONGEST_READ]))
    return shown if len(shown) <= LONGEST_LINE else f"{shown[:LONGEST_LINE]} ... ({len(last)} characters)"


def tail(*, session: Session, run_id: str, after_id: int = 0, limit: int = 500) -> list[LogLine]:
    """The last `limit` lines after `after_id`, the oldest first."""
    later = select(LogLine).where(LogLine.run_id == run_id, col(LogLine.id) > after_id)
    return list(session.exec(later.order_by(col(LogLine.id).desc()).limit(limit)))[::-1]
