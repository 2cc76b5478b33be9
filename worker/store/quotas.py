"""Quotas: how many devices, and how much waiting work, an account may have at once, and how much it has.

They are checked in the transaction that takes devices or queues work. Each check locks the account's row, so that two at once
cannot both take the last device. The server's own user, and accounts without limits, have no quota and cost nothing.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, func
from sqlmodel import Session, col, select

from training.config.fields import ConfigError
from training.config.run_config import RunConfig
from training.errors import Problem
from worker.engine_traits import ENGINES
from worker.store import sight
from worker.store.tables import LOCAL, Account, Evaluation, Machine, Run, ServedModel, ServedState, Status
from worker.store.tables.held import owned_work

_AS_STORED = {"populate_existing": True}  # a session keeps the rows that it has loaded, and others change them
_HOLDING = (ServedState.STARTING, ServedState.READY)


@dataclass
class Use:
    """What an owner uses: devices; and what waits for a worker: runs, evaluations, builds and models to serve."""

    devices: int = 0
    waiting: int = 0


@dataclass(frozen=True)
class DeviceQuotas:
    """The accounts that may use only so many devices at once, with their limits and what they use."""

    limits: dict[str, int]
    uses: dict[str, Use]
    on_cpu: bool
    """Whether runs start on CPUs, of which they take one for each machine."""

    @classmethod
    def read(cls, session: Session, *, on_cpu: bool | None = None) -> "DeviceQuotas":
        """The quotas at present; the session must see everything. `on_cpu` None: if no worker reports a GPU."""
        limited = select(Account.name, Account.max_devices).where(col(Account.max_devices).is_not(None))
        limits = {name: limit or 0 for name, limit in session.exec(limited)}
        if not limits:
            return cls({}, {}, on_cpu=False)
        cpu = _without_gpus(session) if on_cpu is None else on_cpu
        return cls(limits, used(session=session, owners=limits), cpu)

    def allow(self, run: Run) -> bool:
        """True if the owner of a queued run may take its devices now; a run whose job was submitted has them."""
        return bool(run.job_id) or run.owner not in self.limits or self._devices_of(run) <= self.left(run.owner)

    def left(self, owner: str, default: int = 1) -> int:
        """The devices that an owner may still take; `default` without a limit."""
        return self.limits[owner] - self.uses[owner].devices if owner in self.limits else default

    def reason(self, run: Run) -> str:
        """How its owner's quota keeps a queued run from starting, as a sentence; empty if it does not."""
        if run.held or self.allow(run):
            return ""
        owner, needed = run.owner, self._devices_of(run)
        if sight.user() not in (None, owner):  # the run was shared with them, not what else the owner uses
            return f"{owner} uses as many devices as {owner} may use at once."
        needs = f"; this run needs {needed:,}" if self.left(owner) > 0 else ""
        return f"{self.sentence(owner)}{needs}."

    def sentence(self, owner: str) -> str:
        """What an owner with a limit uses, without a full stop."""
        limit, use = self.limits[owner], self.uses[owner].devices
        devices = "device" if limit == 1 else "devices"
        return f"{owner} uses {use:,} of the {limit:,} {devices} that {owner} may use at once"

    def _devices_of(self, run: Run) -> int:
        settings = run.settings
        on_cpu = self.on_cpu and not ENGINES[run.engine].has_jobs
        return int(settings.get("num_machines" if on_cpu else "num_processes", 1))


def used(*, session: Session, owners: Collection[str]) -> dict[str, Use]:
    """What each of the owners uses; the session must see everything."""
    uses = {owner: Use() for owner in owners}
    has_job = col(Run.job_id).is_not(None)
    holds = (col(Run.status) == Status.RUNNING) | ((col(Run.status) == Status.QUEUED) & has_job)
    for run in session.exec(select(Run).where(col(Run.owner).in_(list(owners)), holds), execution_options=_AS_STORED):
        # A job has one lease for each node, whatever it has there.
        settings = run.settings | run.placed
        uses[run.owner].devices += int(settings.get("num_processes", 1)) if run.job_id else len(run.devices)
    for owner, number in [
        *_counted(session, Evaluation, owners, *_EVALUATING),
        *_counted(session, ServedModel, owners, *_SERVING),
    ]:
        uses[owner].devices += number
    for table in owned_work():
        for owner, number in _counted(session, table, owners, table.waits()):
            uses[owner].waiting += number
    return uses


def keeps_devices(*, session: Session, owner: str) -> bool:
    """True if the owner has no more devices than allowed, with those that this transaction has taken. Locks the account."""
    limit = limit_of(session=session, owner=owner, column=Account.max_devices, lock=True)
    return limit is None or used(session=session, owners=[owner])[owner].devices <= limit


def waiting_problem(*, session: Session, owner: str, more: int = 0) -> Problem | None:
    """The problem if the owner has more waiting work than allowed, with those that this transaction has added, or would
    have with `more`. Locks the account unless `more` is given; the session must see everything.
    """
    limit = limit_of(session=session, owner=owner, column=Account.max_waiting, lock=not more)
    if limit is None:
        return None
    waiting = used(session=session, owners=[owner])[owner].waiting + more
    if waiting <= limit:
        return None
    message = f"may have {limit:,} waiting at once (runs, evaluations, builds and models), and would have {waiting:,}."
    fix = "Wait until some have started, stop waiting ones, or ask an admin to raise the limit."
    return Problem("owner", owner, message, fix)


def refuse_too_many(*, session: Session, owner: str, more: int = 0) -> None:
    """Refuses what this transaction has queued, or `more`, if the owner then has too much waiting work.

    Raises:
        ConfigError: there is more than allowed.
    """
    if problem := waiting_problem(session=session, owner=owner, more=more):
        raise ConfigError([problem])


def devices_problem(*, session: Session, config: RunConfig, owner: str, on_cpu: bool) -> Problem | None:
    """The problem of a run that needs more devices than its owner may ever use. On a CPU, each machine is one device."""
    field = "num_machines" if on_cpu else "num_processes"
    needed = getattr(config, field)
    limit = limit_of(session=session, owner=owner, column=Account.max_devices)
    if limit is None or needed <= limit:
        return None
    message = f"needs {needed:,} devices; {owner} may use {limit:,} at once."
    return Problem(field, needed, message, f"Use at most {limit:,}, or ask an admin to raise the limit.")


def limit_of(*, session: Session, owner: str, column: Any, lock: bool = False) -> int | None:
    """The owner's limit in a column of Account, None without one; with `lock`, its row is locked if there is one."""
    if owner == LOCAL:
        return None
    session.flush()
    limit = select(column).where(Account.name == owner, col(column).is_not(None))
    return session.exec(limit.with_for_update() if lock else limit).first()


def _counted(session: Session, table: Any, owners: Collection[str], *condition: ColumnElement[bool]) -> Any:
    """The rows of each owner that fulfill the condition."""
    counted = select(table.owner, func.count()).where(table.owner.in_(list(owners)), *condition)
    return session.exec(counted.group_by(table.owner)).all()


_EVALUATING = (col(Evaluation.status) == Status.RUNNING, col(Evaluation.device) != "")
_SERVING = (col(ServedModel.state).in_(_HOLDING), col(ServedModel.device).is_not(None))


def _without_gpus(session: Session) -> bool:
    names = [str(device["name"]) for machine in session.exec(select(Machine)) for device in machine.devices]
    return not any("/cuda:" in name for name in names)
