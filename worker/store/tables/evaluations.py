"""Evaluations of runs on data sets."""

from typing import Any

from sqlalchemy import JSON, Column, Index, Text, false
from sqlmodel import Field

from worker.store.tables.held import Held
from worker.store.tables.runs import Status, as_text


class Evaluation(Held, table=True):
    """An evaluation of a run: what is asked for, who works on it, and its scores. The answers are in the run's folder."""

    __table_args__ = (Index("ix_evaluation_run_id_id", "run_id", "id"),)

    id: str = Field(primary_key=True, max_length=32)
    run_id: str = Field(foreign_key="run.id", ondelete="CASCADE")
    owner: str = Field(max_length=120)
    status: Status = Field(default=Status.QUEUED, sa_column=Column(as_text(Status), nullable=False, index=True))
    request: dict[str, Any] = Field(
        sa_column=Column(JSON, nullable=False), description="as training.evaluation.request"
    )
    created_at: float
    started_at: float | None = None
    finished_at: float | None = None

    attempt: int = Field(default=0, description="counts claims; a supervisor of an older attempt is refused")
    device: str = Field(default="", max_length=200)
    stopping: bool = Field(
        default=False, sa_column_kwargs={"server_default": false()}, description="a user asked to stop it"
    )

    phase: str = Field(default="", max_length=60)
    done: int = 0
    total: int = 0
    overlap: dict[str, Any] | None = Field(
        default=None, sa_column=Column(JSON(none_as_null=True)), description="as training.evaluation.overlap"
    )
    summary: dict[str, Any] | None = Field(
        default=None, sa_column=Column(JSON(none_as_null=True)), description="rows, and the mean of each metric"
    )
    error: dict[str, Any] | None = Field(
        default=None, sa_column=Column(JSON(none_as_null=True)), description="field, value, message, fix"
    )
    reason: str = Field(
        default="", sa_column=Column(Text, nullable=False, server_default=""), description="of the last requeue"
    )
