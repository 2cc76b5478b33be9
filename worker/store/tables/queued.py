"""Work on ended runs that waits for a worker: what its rows have in common, evaluations, and builds."""

from typing import Annotated, Any

from sqlalchemy import JSON, BigInteger, ColumnElement, Index, Text, UniqueConstraint
from sqlmodel import Field, col

from training.scoring.request import EvaluationRequest
from worker.choices import Status
from worker.store.tables.columns import as_text, flag, json_or_null, json_value
from worker.store.tables.held import Held
from worker.store.tables.row import Shape
from worker.store.tables.shapes import Count, CountedOverlap, EvaluationSummary, NoOverlap, Problem, Time


class QueuedWork(Held):
    """Work on an ended run: who works on it, its progress, and how it ended."""

    run_id: str = Field(foreign_key="run.id", ondelete="CASCADE")
    owner: str = Field(max_length=120)
    status: Status = Field(default=Status.QUEUED, sa_type=as_text(Status), index=True)
    created_at: Time
    started_at: Time | None = None
    finished_at: Time | None = None

    attempt: int = Field(default=0, description="counts claims; a supervisor of an older attempt is refused")
    stopping: bool = flag("a user asked to stop it")

    phase: str = Field(default="", max_length=60)
    done: Count = 0
    total: Count = 0
    error: Annotated[dict[str, Any] | None, Shape(Problem)] = Field(
        default=None, sa_type=JSON(none_as_null=True), description="field, value, message, fix"
    )
    reason: str = Field(
        default="", sa_type=Text, sa_column_kwargs={"server_default": ""}, description="of the last requeue"
    )

    @classmethod
    def waits(cls) -> ColumnElement[bool]:
        return col(cls.status) == Status.QUEUED


class Evaluation(QueuedWork, table=True):
    """An evaluation of a run: what is asked for, and its scores. The answers are in the run's folder."""

    __table_args__ = (Index("ix_evaluation_run_id_id", "run_id", "id"),)

    id: str = Field(primary_key=True, max_length=32)
    request: Annotated[dict[str, Any], Shape(EvaluationRequest, EvaluationRequest().model_dump(mode="json"))] = (
        json_value()
    )
    device: str = Field(default="", max_length=200)
    overlap: Annotated[dict[str, Any] | None, Shape(NoOverlap | CountedOverlap)] = json_or_null()
    summary: Annotated[dict[str, Any] | None, Shape(EvaluationSummary)] = json_or_null(
        "rows, and the mean of each metric"
    )

    @property
    def asked(self) -> EvaluationRequest:
        """What is asked for."""
        return EvaluationRequest.model_validate(self.request)


class Build(QueuedWork, table=True):
    """A form of a run's result that is made on request, as worker/results/results.py names it. The file is in the run's folder."""

    __table_args__ = (UniqueConstraint("run_id", "form"),)

    id: str = Field(primary_key=True, max_length=32)
    form: str = Field(max_length=40, description="merged, gguf, gguf-TYPE, gguf-adapter or checkpoint-N")
    done: Count = Field(default=0, sa_type=BigInteger, description="bytes")
    total: Count = Field(default=0, sa_type=BigInteger)
    notes: str = Field(default="", sa_type=Text, description="what to know of the file that was made")
