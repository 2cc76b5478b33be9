"""Repeated requests: a client that sends the same key again gets the first run or sweep, not a second one.

`add` takes a session, which the caller commits, as in worker/store/runs.py.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlmodel import Session, col, delete, select

from training.config.fields import ConfigError
from training.errors import Conflict
from worker.store import database
from worker.store.tables import IdempotencyKey

HEADER = "Idempotency-Key"
KEPT_SECONDS = 24 * 3600.0
LONGEST_KEY = 200


class KeyReused(Conflict):
    """The key was sent before, with another body."""


class Repeated(Exception):  # noqa: N818 - not an error
    """Another request with this key has queued the run or sweep `stored_id`."""

    def __init__(self, stored_id: str) -> None:
        super().__init__(stored_id)
        self.stored_id = stored_id


@dataclass(frozen=True)
class Submission:
    """A request to queue a run or a sweep: the client's key, its owner, and the SHA-256 of its body."""

    key: str
    owner: str
    digest: str

    @classmethod
    def of(cls, key: str, owner: str, body: Any) -> "Submission":
        """The submission of a JSON body; the order of its keys does not matter."""
        text = json.dumps(body, sort_keys=True)
        return cls(key, owner, hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest())


def once(submission: Submission | None, queue: Callable[[], str]) -> str:
    """The id of the run or sweep that an earlier request with this key has queued, or else that `queue` queues now and returns.

    `queue` calls `add` in the transaction that stores it. Without a submission it is always called.

    Raises:
        KeyReused: the key was sent with another body.
    """
    if submission is None:
        return queue()
    if first := _stored(submission):
        return first
    try:
        return queue()
    except Repeated as repeated:
        return repeated.stored_id
    except ConfigError:
        if first := _stored(submission):  # stored meanwhile, perhaps in the last place of the quota
            return first
        raise


def _stored(submission: Submission) -> str | None:
    with database.read() as session:
        return _find(session, submission)


def _find(session: Session, submission: Submission) -> str | None:
    """The id of the run or sweep that this submission has queued within a day, or None."""
    found = session.exec(
        select(IdempotencyKey).where(
            IdempotencyKey.owner == submission.owner,
            IdempotencyKey.key == submission.key,
            col(IdempotencyKey.created_at) > database.now(session=session) - KEPT_SECONDS,
        )
    ).first()
    if found is None:
        return None
    if found.digest != submission.digest:
        message = f"was sent before with another body, which queued {found.run_id}."
        raise KeyReused(HEADER, submission.key, message, "Send a new key with each new run or sweep.")
    return found.run_id


def add(*, session: Session, submission: Submission, stored_id: str) -> None:
    """Stores the key with the id of its run or sweep, and removes keys that are older than a day.

    Raises:
        Repeated: another request stored it first.
        KeyReused: another request stored it first, with another body.
    """
    now = database.now(session=session)
    session.exec(delete(IdempotencyKey).where(col(IdempotencyKey.created_at) <= now - KEPT_SECONDS))
    values = {"owner": submission.owner, "key": submission.key, "digest": submission.digest}
    # On PostgreSQL, this waits for the transaction of another request with the same key.
    insert = database.insert(session, IdempotencyKey).values(**values, run_id=stored_id, created_at=now)
    session.exec(insert.on_conflict_do_nothing())
    first = _find(session, submission)
    if first is not None and first != stored_id:
        raise Repeated(first)
