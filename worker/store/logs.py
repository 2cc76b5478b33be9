"""The output of the training process, one row per line, with secrets redacted."""

import time

from sqlalchemy import insert, update
from sqlmodel import Session, col, select

from training.redaction import clean
from worker.store.tables import LogLine, Run


def append(*, session: Session, run_id: str, attempt: int, lines: list[str], new_offset: int) -> bool:
    """Stores lines with `new_offset`, the position in output.log after them.

    False, with nothing stored, if the attempt is not the current one. Storing the same part again changes nothing.
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


def tail(
    *, session: Session, run_id: str, after_id: int = 0, before_id: int | None = None, limit: int = 500
) -> list[LogLine]:
    """The last `limit` lines after `after_id` and before `before_id`, the oldest first."""
    later = select(LogLine).where(LogLine.run_id == run_id, col(LogLine.id) > after_id)
    if before_id is not None:
        later = later.where(col(LogLine.id) < before_id)
    return list(session.exec(later.order_by(col(LogLine.id).desc()).limit(limit)))[::-1]


def head(*, session: Session, run_id: str, after_id: int = 0, limit: int = 500) -> list[LogLine]:
    """The first `limit` lines after `after_id`, the oldest first."""
    later = select(LogLine).where(LogLine.run_id == run_id, col(LogLine.id) > after_id)
    return list(session.exec(later.order_by(col(LogLine.id)).limit(limit)))


def last_with(*, session: Session, run_id: str, text: str, before_id: int | None = None) -> int | None:
    """The id of the last line before `before_id` that contains `text`, whatever its case; None if no line does."""
    matching = select(LogLine.id).where(LogLine.run_id == run_id, col(LogLine.text).icontains(text, autoescape=True))
    if before_id is not None:
        matching = matching.where(col(LogLine.id) < before_id)
    return session.exec(matching.order_by(col(LogLine.id).desc()).limit(1)).first()
