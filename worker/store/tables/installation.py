"""What belongs to the installation: the queue, devices, data sets, accounts, machines."""

from typing import Annotated, Any

from sqlalchemy import BigInteger, Column, String, Text
from sqlmodel import Field

from training.data.survey import Issue
from worker.store.tables.columns import json_list, json_object, json_value, text
from worker.store.tables.reports import Capacity, Device
from worker.store.tables.row import Row, Shape
from worker.store.tables.runs import LOCAL
from worker.store.tables.shapes import Count, Finding, Time


class QueueState(Row, table=True):
    """The queue as a whole: one row, or none while nobody has paused it."""

    __tablename__ = "queue_state"

    id: int = Field(default=1, primary_key=True)
    paused_at: Time | None = None
    paused_by: str = Field(default="", max_length=120)


class DeviceLease(Row, table=True):
    """A device in use: one row per device, deleted when it is free."""

    __tablename__ = "device_lease"

    device: str = Field(
        primary_key=True, max_length=200, description="host/index, for example node1/cuda:0 or laptop/cpu:0"
    )
    run_id: str | None = Field(default=None, foreign_key="run.id", index=True, ondelete="CASCADE")
    attempt: int = Field(default=0, description="of the run, or of the evaluation")
    evaluation_id: str | None = Field(
        default=None, max_length=32, description="of the evaluation of the run that uses it"
    )
    served_id: str | None = Field(
        default=None,
        foreign_key="served_model.id",
        index=True,
        ondelete="CASCADE",
        description="the served model that uses it, if no run does",
    )


class Dataset(Row, table=True):
    """An uploaded file, stored once per content; `name` is the uploader's, for display only."""

    id: str = Field(primary_key=True, max_length=32, description="the first 16 hex digits of the content's SHA-256")
    sha256: str = Field(max_length=64, unique=True)
    name: str = Field(max_length=200)
    format: str = Field(
        max_length=20, description="of the file: json, jsonl, csv, tsv, parquet or txt, or one with .gz"
    )
    row_format: str = Field(
        sa_column=Column("shape", String(40), nullable=False),
        description="format of the rows: alpaca, messages, ..., mapped, or unknown",
    )
    reason: str = text("why the rows have that format, as a sentence")
    rows: Count
    bytes: Count = Field(sa_column=Column(BigInteger, nullable=False))
    columns: list[str] = json_list()
    sample: list[dict[str, Any]] = json_list("the first rows, cut short")
    counts: dict[str, Count] = json_object("rows of each format")
    warnings: Annotated[list[dict[str, Any]], Shape(list[Issue])] = json_list("issues, as training.data.survey.Issue")
    columns_map: str | None = Field(
        default=None, sa_column=Column(Text), description="column mapping, as RunConfig.columns"
    )
    owner: str = Field(
        default=LOCAL,
        sa_column=Column(String(120), nullable=False, server_default=LOCAL),
        description="who imported it first: an account, or the server's own user",
    )
    created_at: Time = Field(index=True)


class Account(Row, table=True):
    """A user with their own token."""

    name: str = Field(primary_key=True, max_length=64)
    token_hash: str = Field(max_length=64, unique=True, description="SHA-256 of the token, in hexadecimal")
    admin: bool = Field(default=False, description="may change runs and data sets of others")
    created_at: Time
    max_devices: int | None = Field(default=None, description="that it may use at once; null: no limit")
    max_waiting: int | None = Field(
        default=None, description="runs, evaluations, builds and models that may wait at once; null: no limit"
    )
    max_disk_bytes: int | None = Field(
        default=None, sa_column=Column(BigInteger), description="for its runs and data sets; null: no limit"
    )


class Share(Row, table=True):
    """A run, sweep or data set that a user sees although another one owns it, or a data set whose file they uploaded too."""

    kind: str = Field(primary_key=True, max_length=16, description="run, sweep, dataset or upload")
    object_id: str = Field(primary_key=True, max_length=32)
    user: str = Field(primary_key=True, max_length=120, description="an account, * for all users, or a link")


class IdempotencyKey(Row, table=True):
    """A key that a client sent with a run, so that repeating the request queues no second run. Kept for a day."""

    __tablename__ = "idempotency_key"

    owner: str = Field(primary_key=True, max_length=120)
    key: str = Field(primary_key=True, max_length=200)
    digest: str = Field(max_length=64, description="SHA-256 of the request's body")
    run_id: str = Field(max_length=32)
    created_at: Time = Field(index=True)


class Machine(Row, table=True):
    """The latest report of a worker about its machine, measured by that worker."""

    name: str = Field(primary_key=True, max_length=250, description="the host, with LATHE_DEVICES if that is set")
    host: str = Field(max_length=200)
    worker: str = Field(max_length=200, description="host:pid:start of the worker")
    first_seen: Time = 0.0
    last_seen: Time = Field(default=0.0, description="of the latest report, by the database's clock")
    draining: bool = Field(default=False, description="the worker was told to stop and starts no runs")
    overload: str = text("why it starts no runs now, or empty")
    versions: dict[str, str] = json_object("of Lathe and the training packages")
    cores: int
    load: float = Field(description="load average of the last minute")
    memory_bytes: Count = Field(sa_column=Column(BigInteger, nullable=False))
    memory_used_bytes: Count = Field(sa_column=Column(BigInteger, nullable=False))
    disk_bytes: Count = Field(sa_column=Column(BigInteger, nullable=False), description="of the data folder's disk")
    disk_free_bytes: Count = Field(sa_column=Column(BigInteger, nullable=False))
    devices: Annotated[list[dict[str, Any]], Shape(list[Device])] = json_list()
    findings: Annotated[list[dict[str, str]], Shape(list[Finding])] = json_list(
        "what its worker found wrong when it started, as worker.doctor.finding.Finding", added=True
    )


class EngineReport(Row, table=True):
    """What an engine with machines of its own has, as a worker that reaches it reported last."""

    __tablename__ = "engine_report"

    name: str = Field(primary_key=True, max_length=16, description="slurm")
    reported_at: Time = Field(description="by the database's clock")
    capacity: Annotated[
        dict[str, Any],
        Shape(Capacity, {"engine": "unknown", "problem": "its report is damaged"}),
    ] = json_value()


class MachineFailure(Row, table=True):
    """An attempt of a run on several machines that ended by a fault of this machine."""

    __tablename__ = "machine_failure"

    host: str = Field(primary_key=True, max_length=200)
    run_id: str = Field(primary_key=True, max_length=32)
    attempt: int = Field(primary_key=True)
    failed_at: Time = Field(description="by the database's clock")
    reason: str = Field(sa_column=Column(Text, nullable=False))


class Cordon(Row, table=True):
    """A machine, or a node of Slurm, that runs on several machines avoid until a user takes it back; or a GPU that no run uses."""

    __tablename__ = "machine_aside"

    host: str = Field(primary_key=True, max_length=200, description="the machine, or the device as in leases")
    since: Time = Field(description="by the database's clock")
    reason: str = Field(sa_column=Column(Text, nullable=False), description="of its latest failure")
