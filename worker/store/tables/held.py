"""What the rows of work have in common that a process holds by a lease (worker/store/work.py)."""

from collections.abc import Iterator

from sqlalchemy import ColumnElement
from sqlmodel import Field

from worker.store.tables.row import Row
from worker.store.tables.shapes import Time


class Held(Row):
    """A row with at most one holder at a time."""

    holder: str | None = Field(default=None, max_length=200, description="host:pid:start of the process that holds it")
    expires_at: Time | None = Field(default=None, description="end of the holder's lease, by the database's clock")

    @classmethod
    def waits(cls) -> ColumnElement[bool]:
        """True for rows that wait for a holder, which count for their owner's limit. A table with owners must have it."""
        raise NotImplementedError


def owned_work() -> Iterator[type[Held]]:
    """The tables of work that has owners."""
    tables = [Held]
    for table in tables:
        tables += table.__subclasses__()
        if "__table__" in vars(table) and "owner" in table.model_fields:
            yield table
