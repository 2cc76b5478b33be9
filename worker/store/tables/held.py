"""What the rows of work have in common that a process holds by a lease (worker/store/work.py)."""

from sqlmodel import Field

from worker.store.tables.row import Row
from worker.store.tables.shapes import Time


class Held(Row):
    """A row with at most one holder at a time."""

    holder: str | None = Field(default=None, max_length=200, description="host:pid:start of the process that holds it")
    expires_at: Time | None = Field(default=None, description="end of the holder's lease, by the database's clock")
