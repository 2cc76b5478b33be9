"""What the rows of work on ended runs have in common that wait for a worker."""

from typing import Any

from sqlalchemy import JSON, Text
from sqlmodel import Field

from worker.store.tables.columns import as_text, flag
from worker.store.tables.held import Held
from worker.store.tables.runs import Status


class QueuedWork(Held):
    """Work on an ended run: who works on it, its progress, and how it ended."""

    run_id: str = Field(foreign_key="run.id", ondelete="CASCADE")
    owner: str = Field(max_length=120)
    status: Status = Field(default=Status.QUEUED, sa_type=as_text(Status), index=True)
    created_at: float
    started_at: float | None = None
    finished_at: float | None = None

    attempt: int = Field(default=0, description="counts claims; a supervisor of an older attempt is refused")
    stopping: bool = flag("a user asked to stop it")

    phase: str = Field(default="", max_length=60)
    done: int = 0
    total: int = 0
    error: dict[str, Any] | None = Field(
        default=None, sa_type=JSON(none_as_null=True), description="field, value, message, fix"
    )
    reason: str = Field(
        default="", sa_type=Text, sa_column_kwargs={"server_default": ""}, description="of the last requeue"
    )
