"""Runs, their attempts and parts on further machines, and sweeps of runs."""

from typing import Annotated, Any

from annotated_types import Ge, MaxLen
from sqlalchemy import JSON, BigInteger, Column, ColumnElement, Index, String, event
from sqlmodel import Field, col

from training.config.choices import EngineName
from training.config.fields import ConfigError, parse
from training.config.run_config import RunConfig
from training.run_folder.events import OutOfMemory
from training.run_folder.stages import UNDONE
from worker.choices import Request, Status
from worker.engine_traits import WITH_JOBS
from worker.settings import get_settings
from worker.store.tables.columns import as_text, flag, json_list, json_object, json_or_null, json_value, text
from worker.store.tables.held import Held
from worker.store.tables.row import DamagedRow, Row, Shape
from worker.store.tables.same_work import of_model, of_work
from worker.store.tables.shapes import (
    LONGEST_NOTES,
    Changes,
    Config,
    Count,
    RunFailure,
    RunFineTuning,
    RunForecast,
    RunJob,
    RunPlan,
    RunSummary,
    Tag,
    Time,
)
from worker.store.tables.sweep_values import NO_PLAN, SweepPlan, SweepSpec

LOCAL = "local"
ENGINE = "engine"
"""In `Run.job`: the engine that the job was submitted to."""
"""The owner that represents the user who runs the server, and users of the command line there."""


class Run(Held, table=True):
    """One training run and its state."""

    __table_args__ = (
        Index("ix_run_listed", "archived_at", "pinned", "queued_at", "id"),
        Index("ix_run_same_model", "same_model", "id"),
        Index("ix_run_same_work", "same_work", "status", "id"),
    )

    id: str = Field(primary_key=True, max_length=32)
    name: str = Field(max_length=200)
    status: Status = Field(default=Status.QUEUED, sa_column=Column(as_text(Status), nullable=False, index=True))
    config: Annotated[dict[str, Any], Shape(Config)] = json_value()
    dataset_id: str | None = Field(default=None, foreign_key="dataset.id", index=True)
    same_model: str = Field(
        default="",
        max_length=16,
        sa_column_kwargs={"server_default": ""},
        description="equal for runs with the same model and method (same_work.py)",
    )
    same_work: str = Field(
        default="",
        max_length=16,
        sa_column_kwargs={"server_default": ""},
        description="equal for runs with the same model, method and data",
    )
    fingerprints: dict[str, str] = json_object(
        "SHA-256 of the files of data and validation_data, also when those are deleted", added=True
    )
    parent_id: str | None = Field(default=None, max_length=32, description="the run this one was cloned from")
    owner: str = Field(default=LOCAL, max_length=120, description="who queued it: an account, or the server's own user")
    created_at: Time = Field(index=True)
    queued_at: Time = Field(index=True)
    position: float = Field(
        default=0.0,
        sa_column_kwargs={"server_default": "0"},
        description="its place among waiting runs of its priority: queued_at, unless it was moved",
    )
    priority: int = Field(default=0, sa_column_kwargs={"server_default": "0"}, description="higher starts first")
    held: bool = flag("does not start while it is queued")
    pinned: bool = flag("listed first")
    archived_at: Time | None = Field(default=None, description="listed only on request")
    sweep_id: str | None = Field(default=None, max_length=32, index=True, description="the sweep that it belongs to")
    trial: int | None = Field(
        default=None, description="number of its configuration in the sweep, from 1; runs with other seeds share it"
    )
    pause_at: int | None = Field(
        default=None, description="step at which it saves, evaluates and waits for the decision of its sweep"
    )
    tags: list[Tag] = json_list("in lower case", added=True)
    notes: Annotated[str, MaxLen(LONGEST_NOTES)] = text(added=True)
    started_at: Time | None = None
    finished_at: Time | None = None
    worked_seconds: Annotated[float, Ge(0)] = Field(
        default=0.0, sa_column_kwargs={"server_default": "0"}, description="of its attempts that have ended, together"
    )
    working_since: Time | None = Field(default=None, description="when the attempt that runs began")

    attempt: Count = Field(default=0, description="counts claims; reports of an older attempt are refused")
    request: Request | None = Field(default=None, sa_column=Column(as_text(Request)))
    devices: list[str] = json_list()
    job_id: str | None = Field(
        default=None,
        max_length=250,
        index=True,
        description="the engine's job that was submitted for the run, if it has jobs",
    )
    job: Annotated[dict[str, Any] | None, Shape(RunJob)] = json_or_null(
        "of that job: state, reason, partition, nodes, starts_at, as worker/engines/slurm/jobs.py reads them"
    )
    event_offset: int = Field(
        default=0, sa_column=Column(BigInteger, nullable=False), description="bytes of events.jsonl stored"
    )
    node_offsets: dict[str, int] = json_object(
        "bytes stored of events-N.jsonl, the records of the run's further machines, by N", added=True
    )
    log_offset: int = Field(
        default=0, sa_column=Column(BigInteger, nullable=False), description="bytes of output.log stored"
    )

    phase: str = Field(default="", max_length=40)
    step: Count = 0
    total_steps: Count | None = None
    phase_done: Count | None = Field(default=None, description="progress of a phase that is not counted in steps")
    phase_total: Count | None = None
    seconds_per_step: Annotated[float, Ge(0)] | None = Field(default=None, description="smoothed; the ETA uses it")
    final_loss: float | None = Field(
        default=None, description="of the last logged step; of task grpo minus its mean reward"
    )
    best_loss: float | None = Field(
        default=None, description="lowest evaluation loss; of task grpo minus the highest reward"
    )
    diverged: bool = Field(default=False, description="a loss was NaN or infinite")
    peak_bytes: Count | None = Field(
        default=None, sa_column=Column(BigInteger), description="highest device (CPU: host) memory of any rank"
    )
    plan: Annotated[dict[str, Any] | None, Shape(RunPlan)] = Field(
        default=None, sa_column=Column(JSON), description="events.Planned, as reported"
    )
    summary: Annotated[dict[str, Any] | None, Shape(RunSummary)] = Field(default=None, sa_column=Column(JSON))
    forecast: Annotated[dict[str, Any] | None, Shape(RunForecast)] = json_or_null(
        "of the latest attempt, by worker/forecasts/run_forecast.py"
    )
    error: Annotated[dict[str, Any] | None, Shape(RunFailure)] = Field(
        default=None,
        sa_column=Column(JSON),
        description="message, fix, phase, rank, traceback, log tail; step_down: settings that need less memory",
    )
    stepped_down: Annotated[dict[str, Any], Shape(Changes)] = json_object(
        "settings that replace those in config after out-of-memory errors", added=True
    )
    fine_tuning: Annotated[dict[str, Any] | None, Shape(RunFineTuning)] = json_or_null(
        "of OpenAI's API: the body that asked for the run, and notes of its check"
    )
    placed: Annotated[dict[str, Any], Shape(Changes)] = json_object(
        "settings that the latest attempt has instead, because machines were missing", added=True
    )

    @classmethod
    def waits(cls) -> ColumnElement[bool]:
        return col(cls.status) == Status.QUEUED

    @property
    def settings(self) -> dict[str, Any]:
        """Those in its configuration, with those that replace them."""
        return self.config | self.stepped_down

    @property
    def asked(self) -> RunConfig:
        """Its configuration. Raises DamagedRow or ConfigError if it is no valid one."""
        return self._configuration(self.config)

    @property
    def used(self) -> RunConfig:
        """Its `settings` as a configuration. Raises DamagedRow or ConfigError if they are no valid one."""
        return self._configuration(self.settings)

    @property
    def is_configured(self) -> bool:
        """True if its configuration is a valid one today, as it was asked for and as it is used."""
        try:
            self.asked, self.used  # noqa: B018
        except (DamagedRow, ConfigError):
            return False
        return True

    def obstacle(self) -> str:
        """Why no worker can start it; empty if one can."""
        if obstacle := super().obstacle():
            return obstacle
        try:
            self.used  # noqa: B018
        except ConfigError as error:
            return str(error)
        return ""

    def _configuration(self, settings: dict[str, Any]) -> RunConfig:
        self.require("config", "stepped_down")
        return parse(settings)

    @property
    def num_machines(self) -> int:
        """The number of machines that it uses."""
        return int(self.settings.get("num_machines", 1))

    @property
    def engine(self) -> EngineName:
        """The engine of its job, else the one in its settings, else the installation's first one."""
        if self.job_id:
            return EngineName((self.job or {}).get(ENGINE) or WITH_JOBS[0])  # jobs of before had no other
        return get_settings().chosen_engine(EngineName(self.config.get("engine", EngineName.AUTO)))

    @property
    def has_result(self) -> bool:
        """True if it has saved a result: it finished, diverged after a checkpoint with finite weights, or only what follows the
        result is left."""
        return self.status is Status.FINISHED or self.summary is not None

    @property
    def undone(self) -> dict[str, str]:
        """The phases after its result was saved that were not done (`stages.MISSING`), each with the reason."""
        return dict((self.summary or {}).get(UNDONE) or {}) if self.status.ended else {}

    @property
    def resumable(self) -> bool:
        """True if Resume continues it: from its last checkpoint, or after its training with what was not done."""
        return self.status.resumable or (self.status is Status.FINISHED and bool(self.undone))

    @property
    def differs(self) -> bool:
        """True if a form of its result, as compared at the end of training, does not compute what was trained."""
        parity = (self.summary or {}).get("parity") or {}
        return self.has_result and any(form.get("equal") is False for form in (parity.get("forms") or {}).values())

    def worked(self, now: float) -> float | None:
        """The seconds of its attempts up to `now`, without those in which it waited or was stopped; None before the first."""
        if self.started_at is None:
            return None
        return self.worked_seconds + (max(now - self.working_since, 0.0) if self.working_since else 0.0)

    @property
    def at_rung(self) -> bool:
        """True once it has reached the step at which its sweep decides."""
        return self.pause_at is not None and self.step >= self.pause_at


@event.listens_for(Run, "before_insert")
def _mark_same_work(_mapper: object, _connection: object, run: Run) -> None:
    run.same_model, run.same_work = of_model(run.config), of_work(run.config, run.dataset_id)


class Attempt(Row, table=True):
    """One start of a run, with how it ended."""

    run_id: str = Field(primary_key=True, foreign_key="run.id", ondelete="CASCADE")
    number: int = Field(primary_key=True)
    host: str = Field(max_length=200)
    devices: list[str] = json_list()
    started_at: Time
    ended_at: Time | None = None
    outcome: str = Field(
        default="", max_length=40, description="finished, failed, stopped, diverged, requeued, paused, starved, lost"
    )
    exit_code: int | None = None
    reason: str = text()
    stepped_down: Annotated[dict[str, Any], Shape(Changes)] = json_object(
        "the run's, when the attempt began", added=True
    )
    out_of_memory: Annotated[dict[str, Any] | None, Shape(OutOfMemory)] = json_or_null(
        "events.OutOfMemory of the first rank to report one"
    )


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
    ended_at: Time | None = None

    @property
    def key(self) -> tuple[Any, Any, Any]:
        return self.run_id, self.attempt, self.rank


class Sweep(Row, table=True):
    """A sweep as it was requested. Its progress and results are those of its runs, which name it in `sweep_id`."""

    id: str = Field(primary_key=True, max_length=32)
    name: str = Field(max_length=200)
    owner: str = Field(default=LOCAL, sa_column=Column(String(120), nullable=False))
    created_at: Time = Field(index=True)
    spec: Annotated[dict[str, Any], Shape(SweepSpec, {"config": {}, "space": {}})] = json_value("as it was requested")
    plan: Annotated[dict[str, Any], Shape(SweepPlan, NO_PLAN.model_dump())] = json_value(
        "what was shown before the start"
    )
    stopped_at: Time | None = Field(default=None, description="a user stopped it; no further run is promoted")
    deleted_at: Time | None = Field(default=None, description="a user deleted it; its runs are being deleted")
