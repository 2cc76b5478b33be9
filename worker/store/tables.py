"""The tables. A run's row is authoritative; the other tables contain what it reported.

Times are seconds since the epoch (float), by the database's clock if anything depends on them. Sizes are bytes.
"""

from enum import StrEnum
from typing import Any

from sqlalchemy import JSON, BigInteger, Column, Enum, Index, String, Text, false
from sqlmodel import Field, SQLModel

LOCAL = "local"
"""The owner that represents the user who runs the server, and users of the command line there."""


class Status(StrEnum):
    """The life of a run.

    queued -> running -> finished | failed | stopped
    A running run returns to queued when its machine stops or its supervisor is lost; it resumes from its last
    checkpoint. Resume returns a failed or stopped run to queued.
    """

    QUEUED = "queued"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def ended(self) -> bool:
        return self in (Status.FINISHED, Status.FAILED, Status.STOPPED)


class Request(StrEnum):
    """A request to a running run by a user or the machine; its supervisor carries it out."""

    STOP = "stop"
    REQUEUE = "requeue"


def _text(kind: type[StrEnum]) -> Enum:
    """An enum stored as text: a new value needs no migration."""
    return Enum(kind, native_enum=False, length=16, values_callable=lambda kind: [one.value for one in kind])


class Run(SQLModel, table=True):
    """One training run and its state."""

    __table_args__ = (Index("ix_run_listed", "archived_at", "pinned", "queued_at", "id"),)

    id: str = Field(primary_key=True, max_length=32)
    name: str = Field(max_length=200)
    status: Status = Field(default=Status.QUEUED, sa_column=Column(_text(Status), nullable=False, index=True))
    config: dict[str, Any] = Field(sa_column=Column(JSON, nullable=False))
    dataset_id: str | None = Field(default=None, foreign_key="dataset.id", index=True)
    fingerprints: dict[str, str] = Field(
        default_factory=dict,
        sa_column=Column(JSON, nullable=False, server_default="{}"),
        description="SHA-256 of the files of data and validation_data, also when those are deleted",
    )
    parent_id: str | None = Field(default=None, max_length=32, description="the run this one was cloned from")
    owner: str = Field(default=LOCAL, max_length=120, description="who queued it: an account, or the server's own user")
    created_at: float = Field(index=True)
    queued_at: float = Field(index=True)
    position: float = Field(
        default=0.0,
        sa_column_kwargs={"server_default": "0"},
        description="its place among waiting runs of its priority: queued_at, unless it was moved",
    )
    priority: int = Field(default=0, sa_column_kwargs={"server_default": "0"}, description="higher starts first")
    held: bool = Field(
        default=False, sa_column_kwargs={"server_default": false()}, description="does not start while it is queued"
    )
    pinned: bool = Field(default=False, sa_column_kwargs={"server_default": false()}, description="listed first")
    archived_at: float | None = Field(default=None, description="listed only on request")
    tags: list[str] = Field(
        default_factory=list, sa_column=Column(JSON, nullable=False, server_default="[]"), description="in lower case"
    )
    notes: str = Field(default="", sa_column=Column(Text, nullable=False, server_default=""))
    started_at: float | None = None
    finished_at: float | None = None

    attempt: int = Field(default=0, description="counts claims; reports of an older attempt are refused")
    lease_owner: str | None = Field(default=None, max_length=200, description="host:pid:start of the supervisor")
    lease_expires_at: float | None = None
    request: Request | None = Field(default=None, sa_column=Column(_text(Request)))
    devices: list[str] = Field(default_factory=list, sa_column=Column(JSON, nullable=False))
    event_offset: int = Field(
        default=0, sa_column=Column(BigInteger, nullable=False), description="bytes of events.jsonl stored"
    )
    log_offset: int = Field(
        default=0, sa_column=Column(BigInteger, nullable=False), description="bytes of output.log stored"
    )

    phase: str = Field(default="", max_length=40)
    step: int = 0
    total_steps: int | None = None
    phase_done: int | None = Field(default=None, description="progress of a phase that is not counted in steps")
    phase_total: int | None = None
    seconds_per_step: float | None = Field(default=None, description="smoothed; the ETA uses it")
    final_loss: float | None = None
    best_loss: float | None = Field(default=None, description="lowest evaluation loss")
    diverged: bool = Field(default=False, description="a loss was NaN or infinite")
    peak_bytes: int | None = Field(
        default=None, sa_column=Column(BigInteger), description="highest device (CPU: host) memory of any rank"
    )
    plan: dict[str, Any] | None = Field(default=None, sa_column=Column(JSON), description="events.Planned, as reported")
    summary: dict[str, Any] | None = Field(default=None, sa_column=Column(JSON))
    forecast: dict[str, Any] | None = Field(
        default=None,
        sa_column=Column(JSON(none_as_null=True)),
        description="of the latest attempt, by worker/forecasts/run_forecast.py",
    )
    error: dict[str, Any] | None = Field(
        default=None,
        sa_column=Column(JSON),
        description="message, fix, phase, rank, traceback, log tail; step_down: settings that need less memory",
    )
    stepped_down: dict[str, Any] = Field(
        default_factory=dict,
        sa_column=Column(JSON, nullable=False, server_default="{}"),
        description="settings that replace those in config after out-of-memory errors",
    )


class Attempt(SQLModel, table=True):
    """One start of a run, with how it ended."""

    run_id: str = Field(primary_key=True, foreign_key="run.id", ondelete="CASCADE")
    number: int = Field(primary_key=True)
    host: str = Field(max_length=200)
    devices: list[str] = Field(default_factory=list, sa_column=Column(JSON, nullable=False))
    started_at: float
    ended_at: float | None = None
    outcome: str = Field(default="", max_length=40, description="finished, failed, stopped, requeued, starved, lost")
    exit_code: int | None = None
    reason: str = Field(default="", sa_column=Column(Text, nullable=False))
    stepped_down: dict[str, Any] = Field(
        default_factory=dict,
        sa_column=Column(JSON, nullable=False, server_default="{}"),
        description="the run's, when the attempt began",
    )
    out_of_memory: dict[str, Any] | None = Field(
        default=None,
        sa_column=Column(JSON(none_as_null=True)),
        description="events.OutOfMemory of the first rank to report one",
    )


class QueueState(SQLModel, table=True):
    """The queue as a whole: one row, or none while nobody has paused it."""

    __tablename__ = "queue_state"

    id: int = Field(default=1, primary_key=True)
    paused_at: float | None = None
    paused_by: str = Field(default="", max_length=120)


class DeviceLease(SQLModel, table=True):
    """A device in use: one row per device, deleted when it is free."""

    __tablename__ = "device_lease"

    device: str = Field(
        primary_key=True, max_length=200, description="host/index, for example node1/cuda:0 or laptop/cpu:0"
    )
    run_id: str = Field(foreign_key="run.id", index=True, ondelete="CASCADE")
    attempt: int


class Metric(SQLModel, table=True):
    """One number of a series. A step reported again after a resume replaces the old value. `rank` is -1 for the whole run."""

    # SQLite keeps the rows in the key's order: half the file, and a series lies together.
    __table_args__ = {"sqlite_with_rowid": False}

    run_id: str = Field(primary_key=True, foreign_key="run.id", ondelete="CASCADE")
    name: str = Field(primary_key=True, max_length=60)
    rank: int = Field(primary_key=True, default=-1)
    step: int = Field(primary_key=True)
    time: float
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
    time: float
    count: int
    mean: float | None = None
    low: float | None = None
    high: float | None = None


class RunEvent(SQLModel, table=True):
    """Something that happened: a phase, a checkpoint, a resume, a note, a stop, a failure."""

    __tablename__ = "run_event"
    __table_args__ = (Index("ix_run_event_run_id_id", "run_id", "id"),)

    id: int | None = Field(default=None, primary_key=True)
    run_id: str = Field(foreign_key="run.id", ondelete="CASCADE")
    attempt: int
    time: float
    kind: str = Field(max_length=20)
    level: str = Field(default="info", max_length=10, description="info, warning or error")
    step: int | None = None
    message: str = Field(sa_column=Column(Text, nullable=False))


class LogLine(SQLModel, table=True):
    """One line of what the training process printed."""

    __tablename__ = "log_line"
    __table_args__ = (Index("ix_log_line_run_id_id", "run_id", "id"),)

    id: int | None = Field(default=None, primary_key=True)
    run_id: str = Field(foreign_key="run.id", ondelete="CASCADE")
    attempt: int
    time: float
    text: str = Field(sa_column=Column(Text, nullable=False))


class Dataset(SQLModel, table=True):
    """An uploaded file, stored once per content; `name` is the uploader's, for display only."""

    id: str = Field(primary_key=True, max_length=32, description="the first 16 hex digits of the content's SHA-256")
    sha256: str = Field(max_length=64, unique=True)
    name: str = Field(max_length=200)
    format: str = Field(
        max_length=20, description="of the file: json, jsonl, csv, tsv, parquet or txt, or one with .gz"
    )
    shape: str = Field(max_length=40, description="format of the rows: alpaca, messages, ..., mapped, or unknown")
    reason: str = Field(
        default="", sa_column=Column(Text, nullable=False), description="why the rows have that format, as a sentence"
    )
    rows: int
    bytes: int = Field(sa_column=Column(BigInteger, nullable=False))
    columns: list[str] = Field(default_factory=list, sa_column=Column(JSON, nullable=False))
    sample: list[dict[str, Any]] = Field(
        default_factory=list, sa_column=Column(JSON, nullable=False), description="the first rows, cut short"
    )
    counts: dict[str, int] = Field(
        default_factory=dict, sa_column=Column(JSON, nullable=False), description="rows of each format"
    )
    warnings: list[dict[str, Any]] = Field(
        default_factory=list,
        sa_column=Column(JSON, nullable=False),
        description="issues, as training.data.issues.Issue",
    )
    columns_map: str | None = Field(
        default=None, sa_column=Column(Text), description="column mapping, as RunConfig.columns"
    )
    owner: str = Field(
        default=LOCAL,
        sa_column=Column(String(120), nullable=False, server_default=LOCAL),
        description="who imported it first: an account, or the server's own user",
    )
    created_at: float = Field(index=True)


class Account(SQLModel, table=True):
    """A user with their own token."""

    name: str = Field(primary_key=True, max_length=64)
    token_hash: str = Field(max_length=64, unique=True, description="SHA-256 of the token, in hexadecimal")
    admin: bool = Field(default=False, description="may change runs and data sets of others")
    created_at: float


class IdempotencyKey(SQLModel, table=True):
    """A key that a client sent with a run, so that repeating the request queues no second run. Kept for a day."""

    __tablename__ = "idempotency_key"

    owner: str = Field(primary_key=True, max_length=120)
    key: str = Field(primary_key=True, max_length=200)
    digest: str = Field(max_length=64, description="SHA-256 of the request's body")
    run_id: str = Field(max_length=32)
    created_at: float = Field(index=True)


class Machine(SQLModel, table=True):
    """The latest report of a worker about its machine, measured by that worker."""

    name: str = Field(primary_key=True, max_length=250, description="the host, with LATHE_DEVICES if that is set")
    host: str = Field(max_length=200)
    worker: str = Field(max_length=200, description="host:pid:start of the worker")
    first_seen: float = 0.0
    last_seen: float = Field(default=0.0, description="of the latest report, by the database's clock")
    draining: bool = Field(default=False, description="the worker was told to stop and starts no runs")
    overload: str = Field(
        default="", sa_column=Column(Text, nullable=False), description="why it starts no runs now, or empty"
    )
    versions: dict[str, str] = Field(
        default_factory=dict, sa_column=Column(JSON, nullable=False), description="of Lathe and the training packages"
    )
    cores: int
    load: float = Field(description="load average of the last minute")
    memory_bytes: int = Field(sa_column=Column(BigInteger, nullable=False))
    memory_used_bytes: int = Field(sa_column=Column(BigInteger, nullable=False))
    disk_bytes: int = Field(sa_column=Column(BigInteger, nullable=False), description="of the data folder's disk")
    disk_free_bytes: int = Field(sa_column=Column(BigInteger, nullable=False))
    devices: list[dict[str, Any]] = Field(
        default_factory=list,
        sa_column=Column(JSON, nullable=False),
        description="as worker.machine.measurement.Device",
    )
