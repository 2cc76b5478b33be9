"""What a run reports: metrics, samples, events and log lines. Metrics and log lines are too many to be checked when they are read."""

from sqlalchemy import Column, Index, Text
from sqlmodel import Field, SQLModel

from worker.store.tables import columns
from worker.store.tables.row import Row
from worker.store.tables.shapes import Time


class Metric(SQLModel, table=True):
    """One number of a series. A step reported again after a resume replaces the old value. `rank` is -1 for the whole run."""

    # SQLite keeps the rows in the key's order: half the file, and a series lies together.
    __table_args__ = {"sqlite_with_rowid": False}

    run_id: str = Field(primary_key=True, foreign_key="run.id", ondelete="CASCADE")
    name: str = Field(primary_key=True, max_length=60)
    rank: int = Field(primary_key=True, default=-1)
    step: int = Field(primary_key=True)
    time: Time
    value: float | None = Field(default=None, description="null for NaN or infinity")


class MetricRollup(SQLModel, table=True):
    """A bucket of steps of a series: level 1 holds 16 steps, each further level 4 times as many."""

    __tablename__ = "metric_rollup"
    __table_args__ = {"sqlite_with_rowid": False}

    run_id: str = Field(primary_key=True, foreign_key="run.id", ondelete="CASCADE")
    # Before the name: the coarsest level, which says what series there are, is one short range of the key.
    level: int = Field(primary_key=True)
    name: str = Field(primary_key=True, max_length=60)
    rank: int = Field(primary_key=True, default=-1)
    bucket: int = Field(primary_key=True)
    step: int = Field(description="last step in the bucket")
    time: Time
    count: int
    mean: float | None = None
    low: float | None = None
    high: float | None = None


class Sample(Row, table=True):
    """A sample that a run drew, with its scores. Step 0 is before training; `sample` is its number in the epoch."""

    run_id: str = Field(primary_key=True, foreign_key="run.id", ondelete="CASCADE")
    step: int = Field(primary_key=True)
    sample: int = Field(primary_key=True)
    group: int = Field(description="number of its prompt, equal for samples that are compared with each other")
    row: int = Field(description="number of the data row in its file, from 0")
    file: str = columns.text("name of the data file, if there are several")
    prompt: str = columns.text()
    expected: str = columns.text("the expected answer")
    text: str = columns.text("the sample without special tokens")
    tokens: int
    ended: bool = Field(description="false if it was cut off at the greatest length")
    scores: dict[str, float | None] = columns.json_object(
        "by reward, null where one does not apply or failed; of task distill teacher_logprob, the mean of its tokens"
    )
    reward: float | None = Field(default=None, description="weighted sum of the scores; null without any")
    advantage: float | None = Field(default=None, description="null in task distill")


class RunEvent(Row, table=True):
    """Something that happened: a phase, a checkpoint, a resume, a note, a stop, a failure."""

    __tablename__ = "run_event"
    __table_args__ = (Index("ix_run_event_run_id_id", "run_id", "id"),)

    id: int | None = Field(default=None, primary_key=True, sa_type=columns.ROW_ID)
    run_id: str = Field(foreign_key="run.id", ondelete="CASCADE")
    attempt: int
    time: Time
    kind: str = Field(max_length=20)
    level: str = Field(default="info", max_length=10, description="info, warning or error")
    step: int | None = None
    message: str = Field(sa_column=Column(Text, nullable=False))


class LogLine(SQLModel, table=True):
    """One line of what the training process printed."""

    __tablename__ = "log_line"
    __table_args__ = (Index("ix_log_line_run_id_id", "run_id", "id"),)

    id: int | None = Field(default=None, primary_key=True, sa_type=columns.ROW_ID)
    run_id: str = Field(foreign_key="run.id", ondelete="CASCADE")
    attempt: int
    time: Time
    text: str = Field(sa_column=Column(Text, nullable=False))
