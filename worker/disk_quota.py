"""The disk space that an account may use for the folders of its runs and for its data sets, in the data folder of this machine.

Only accounts with a limit are measured, which reads the folders of all their runs: not on the event loop, and in no transaction.
What is stored is checked once more in the transaction that stores it, against what others have stored meanwhile.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from sqlmodel import Session, func, select

from training.units import byte_size
from worker.machine.sizes import size_of
from worker.settings import get_settings
from worker.store import database, quotas
from worker.store.tables import LOCAL, Account, Dataset, Run

FIX = "Delete runs, checkpoints or data sets, or ask an admin to raise the limit."


@dataclass(frozen=True)
class DiskQuota:
    """What an account may use (None: no limit), and the bytes that it uses: by the ids of its runs, and in data sets."""

    owner: str
    limit: int | None = None
    runs: Mapping[str, int] | None = None
    datasets: int = 0

    @property
    def used(self) -> int:
        """Bytes in use."""
        return sum((self.runs or {}).values()) + self.datasets

    def refusal(self, more: int) -> str:
        """Why `more` bytes may not be stored, as a sentence; empty if they may."""
        if self.limit is None or self.used + more <= self.limit:
            return ""
        needs = f"needs {byte_size(more)}; " if more else ""
        return f"{needs}{self.owner} uses {byte_size(self.used)} of the {byte_size(self.limit)} that {self.owner} may use on disk."

    def again(self, session: Session) -> "DiskQuota":
        """The quota with the data sets and the new runs that have been stored since it was measured. Locks the account."""
        limit = quotas.limit_of(session=session, owner=self.owner, column=Account.max_disk_bytes, lock=True)
        return replace(self, limit=limit, **_use(session, self.owner, self.runs or {})) if limit else self


UNLIMITED = DiskQuota(LOCAL)
"""For what is stored for no account, or not stored at all."""

_once: ContextVar[dict[str, DiskQuota] | None] = ContextVar("measured", default=None)


@contextmanager
def measured_once() -> Iterator[None]:
    """Measures each account at most once in the `with` block, for many runs that are checked together."""
    token = _once.set({})
    try:
        yield
    finally:
        _once.reset(token)


def measured(owner: str) -> DiskQuota:
    """What the account uses now; without a limit, nothing is measured."""
    known = _once.get()
    if known is None:
        return _measured(owner)
    return known.get(owner) or known.setdefault(owner, _measured(owner))


def _measured(owner: str) -> DiskQuota:
    with database.read_everything() as session:
        limit = quotas.limit_of(session=session, owner=owner, column=Account.max_disk_bytes)
        return DiskQuota(owner, limit, **_use(session, owner, {})) if limit else DiskQuota(owner)


def _use(session: Session, owner: str, known: Mapping[str, int]) -> dict[str, Any]:
    folder = get_settings().runs_dir
    ids = session.exec(select(Run.id).where(Run.owner == owner)).all()
    runs = {run_id: known[run_id] if run_id in known else size_of(folder / run_id).bytes for run_id in ids}
    stored = select(func.coalesce(func.sum(Dataset.bytes), 0)).where(Dataset.owner == owner)
    return {"runs": runs, "datasets": int(session.exec(stored).one())}
