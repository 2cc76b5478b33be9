"""The further machines of a run that uses several."""

from typing import Any

from sqlalchemy import Column, Text
from sqlmodel import Field, SQLModel

from worker.store.tables.columns import json_value, text
from worker.store.tables.held import Held


class RunNode(Held, table=True):
    """The part of an attempt on one further machine: a worker there starts a process that holds it by a lease."""

    __tablename__ = "run_node"

    run_id: str = Field(primary_key=True, max_length=32, foreign_key="run.id", ondelete="CASCADE")
    attempt: int = Field(primary_key=True)
    rank: int = Field(primary_key=True, description="the machine's number in the run, from 1; 0 is the supervisor's")
    host: str = Field(max_length=200, index=True)
    devices: list[str] = json_value()
    request: str = Field(default="", max_length=16, description="what the holder should do: stop or kill")
    exit_code: int | None = None
    problem: str = text("why its ranks could not be started")
    ended_at: float | None = None

    @property
    def key(self) -> tuple[Any, Any, Any]:
        return self.run_id, self.attempt, self.rank


class MachineFailure(SQLModel, table=True):
    """An attempt of a run on several machines that ended by a fault of this machine."""

    __tablename__ = "machine_failure"

    host: str = Field(primary_key=True, max_length=200)
    run_id: str = Field(primary_key=True, max_length=32)
    attempt: int = Field(primary_key=True)
    failed_at: float = Field(description="by the database's clock")
    reason: str = Field(sa_column=Column(Text, nullable=False))


class Cordon(SQLModel, table=True):
    """A machine, or a node of Slurm, that runs on several machines avoid until a user takes it back; or a GPU that no run uses."""

    __tablename__ = "machine_aside"

    host: str = Field(primary_key=True, max_length=200, description="the machine, or the device as in leases")
    since: float = Field(description="by the database's clock")
    reason: str = Field(sa_column=Column(Text, nullable=False), description="of its latest failure")
