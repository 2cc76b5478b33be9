"""Sweeps: several runs of one configuration with different values of some settings."""

from typing import Any

from sqlalchemy import Column, String
from sqlmodel import Field, SQLModel

from worker.store.tables.columns import json_value
from worker.store.tables.runs import LOCAL


class Sweep(SQLModel, table=True):
    """A sweep as it was requested. Its progress and results are those of its runs, which name it in `sweep_id`."""

    id: str = Field(primary_key=True, max_length=32)
    name: str = Field(max_length=200)
    owner: str = Field(default=LOCAL, sa_column=Column(String(120), nullable=False))
    created_at: float = Field(index=True)
    spec: dict[str, Any] = json_value("as worker.sweeps.spec.SweepSpec")
    plan: dict[str, Any] = json_value("what was shown before the start")
    stopped_at: float | None = Field(default=None, description="a user stopped it; no further run is promoted")
    deleted_at: float | None = Field(default=None, description="a user deleted it; its runs are being deleted")
