"""Evaluations of runs on data sets."""

from typing import Any

from sqlalchemy import Index
from sqlmodel import Field

from worker.store.tables.columns import json_or_null, json_value
from worker.store.tables.queued import QueuedWork


class Evaluation(QueuedWork, table=True):
    """An evaluation of a run: what is asked for, and its scores. The answers are in the run's folder."""

    __table_args__ = (Index("ix_evaluation_run_id_id", "run_id", "id"),)

    id: str = Field(primary_key=True, max_length=32)
    request: dict[str, Any] = json_value("as training.scoring.request")
    device: str = Field(default="", max_length=200)
    overlap: dict[str, Any] | None = json_or_null("as training.scoring.overlap")
    summary: dict[str, Any] | None = json_or_null("rows, and the mean of each metric")
