"""The worker's periodic rounds: requeues runs whose supervisor is gone, starts waiting runs, reports the
machine, and applies the retention rules.

Celery messages only make it faster: without them, a waiting run is still found within seconds.
"""

import logging
import threading
from collections.abc import Callable, Set
from dataclasses import asdict

from sqlmodel import Session

from training.config.choices import EngineName
from worker.disk import retention
from worker.doctor import wrong_at_start
from worker.engines.registry import Engine, engine_of, engines
from worker.machine import device_trial, measurement, overload
from worker.machine.process_identity import me
from worker.queue import parts
from worker.settings import get_settings
from worker.store import claims, database, history, machines
from worker.store.database import UNREACHABLE
from worker.store.tables import Request, Run, Status
from worker.store.work import RUN
from worker.supervision import closing, holders, outcome, saved_result
from worker.supervision.holders import Holder
from worker.supervision.lease import steady
from worker.supervision.outcome import Verdict
from worker.supervision.report_reader import AttemptProgress

log = logging.getLogger(__name__)

ROUND_SECONDS = 5.0
_ERROR_LINES = 60
_CONTINUES = "It continues from its last complete checkpoint."
REPORT_SECONDS = 10.0


class Reaper(threading.Thread):
    """Runs a round at once, then every few seconds, until `stop`; those of engines that ask elsewhere in threads of their own."""

    def __init__(self) -> None:
        super().__init__(name="reaper", daemon=True)
        self._stopping = threading.Event()
        self._elsewhere: list[EngineRounds] = []

    def run(self) -> None:
        gauge, reporter = overload.Gauge(), Reporter()
        self._elsewhere = [EngineRounds(engine, self._stopping) for engine in engines() if engine.asks_elsewhere]
        for rounds in self._elsewhere:
            rounds.start()
        trying = threading.Thread(target=_attempt, args=(lambda: try_devices(gauge),), name="device trial", daemon=True)
        trying.start()
        while not self._stopping.is_set():
            holders.ended.clear()
            for action in (local_round, serve_round, prepare, reporter.report_if_due, retention.apply_if_due):
                _attempt(action)
            gauge.sleep(holders.ended, ROUND_SECONDS)
        _attempt(reporter.leave)

    def stop(self) -> None:
        """Ends the rounds; afterwards no run is started, except one that is already being started."""
        self._stopping.set()
        self.wake()
        holders.ended.set()

    def wake(self) -> None:
        """Lets the engines that ask elsewhere look at once."""
        for rounds in self._elsewhere:
            rounds.woken.set()


class EngineRounds(threading.Thread):
    """The rounds of an engine that asks elsewhere: while that does not answer, only the engine's own runs wait."""

    def __init__(self, engine: Engine, stopping: threading.Event) -> None:
        super().__init__(name=f"{engine.name.value} rounds", daemon=True)
        self._engine, self._stopping = engine, stopping
        self.woken = threading.Event()

    def run(self) -> None:
        report_due = 0.0
        while not self._stopping.is_set():
            self.woken.clear()
            _attempt(lambda: recover_lost({self._engine.name}))
            _attempt(self._engine.submit_waiting)
            if steady() >= report_due:
                report_due = steady() + REPORT_SECONDS
                _attempt(lambda: report_engine(self._engine))
            self.woken.wait(ROUND_SECONDS)


def try_devices(gauge: overload.Gauge) -> None:
    """Tries each GPU. Those that compute nothing are put aside; if torch sees too few, this machine starts no runs."""
    found = device_trial.trial()
    gauge.trial = found.problem
    for name, reason in found.faulty.items():
        log.warning("%s is put aside: %s", name, reason)
        with database.write() as session:
            machines.cordon(session=session, host=name, reason=reason)


def _attempt(action: Callable[[], object]) -> None:
    """Calls `action` and logs its failure. The thread must go on: without a reaper, runs would wait forever."""
    try:
        action()
    except UNREACHABLE as error:
        log.warning("the database is unreachable: %s", error)
    except Exception:
        log.exception("a round failed")


def run_round() -> None:
    """One round of this machine and of all engines."""
    local_round()
    for engine in engines():
        if engine.asks_elsewhere:
            recover_lost({engine.name})
            engine.submit_waiting()


def local_round() -> None:
    """One round of all that asks nothing elsewhere."""
    recover_lost({*EngineName} - {engine.name for engine in engines() if engine.asks_elsewhere})
    for action in parts.IN_EACH_ROUND:
        action()
    for part in parts.BEFORE_RUNS:
        part.recover()
        part.start_waiting()
    submit_waiting()


def submit_waiting() -> list[Run]:
    """Lets every engine that asks nothing elsewhere start its waiting runs; returns those that it started."""
    return [run for engine in engines() if not engine.asks_elsewhere for run in engine.submit_waiting()]


def prepare() -> None:
    """Keeps ready what lets runs start at once."""
    for engine in engines():
        engine.prepare()


def serve_round() -> None:
    """One round for served models."""
    for part in parts.SERVED:
        part.recover()
        part.start_waiting()


def recover_lost(names: Set[EngineName]) -> None:
    """Requeues the lost runs of these engines."""
    for run in lost_runs(names):
        recover(run)


def lost_runs(names: Set[EngineName] = frozenset(EngineName)) -> list[Run]:
    """Running runs of these engines without a holder: the lease has expired, or its owner on this machine is dead."""
    part = " ".join(sorted(names))
    return holders.lost(RUN, lambda run: engine_of(run).poll(run), part, lambda run: run.engine in names)


def recover(run: Run) -> bool:
    """Requeues a lost run, or fails it if it was lost too often. False if it still has a holder."""
    engine = engine_of(run)

    def close(session: Session, current: Run, holder: Holder) -> bool:
        late = holder in (Holder.ALIVE, Holder.STARTING)
        log.warning("run %s, attempt %d, is %s", run.id, run.attempt, "starved" if late else "lost")
        if late:
            reason = f"{_starved_reason(run)} {_CONTINUES}"
            return claims.requeue(session=session, run_id=run.id, attempt=run.attempt, reason=reason, outcome="starved")
        verdict = _verdict(session, current, holders.host_of(run), expired=holder is not Holder.GONE)
        run_dir = get_settings().runs_dir / run.id
        if saved_result.only_rest_is_left(run_dir):  # as far as this machine sees its files
            verdict = saved_result.kept(verdict, current, run_dir, current.phase)
        most = get_settings().max_attempts
        return closing.close(session=session, run=current, verdict=verdict, max_attempts=most, counted_as="lost")

    return holders.recover(RUN, run, engine.poll, engine.cancel, close)


def _starved_reason(run: Run) -> str:
    holder = "supervisor" if claims.adopted(run) else "worker"
    late = f"did not renew its lease for {get_settings().lease_seconds:.0f} s although it was alive"
    return f"Its {holder} on {holders.host_of(run)} {late}: the machine is overloaded or was suspended."


def _verdict(session: Session, run: Run, host: str, expired: bool) -> Verdict:
    if run.request is Request.REQUEUE:
        return Verdict(Status.QUEUED, f"It was killed before it could save. {_CONTINUES}")
    if expired:
        reason = f"Lost contact with {host} for {get_settings().lease_seconds:.0f} s."
    else:
        reason = f"Its supervisor on {host} ended unexpectedly."
    lines = history.log_tail(session=session, run_id=run.id, limit=_ERROR_LINES)
    seen = AttemptProgress(phase=run.phase, step=run.step)
    seen.log.extend(line.text for line in lines)
    # A job of Slurm that has ended may have been cancelled or preempted.
    at_fault = host if expired or not run.job_id else ""
    error = outcome.error_of(seen, reason)
    return Verdict(Status.FAILED, reason, error, retry=True, goes_on=_CONTINUES, machine=at_fault)


class Reporter:
    """Measures this machine and stores the report, every ten seconds, with what was wrong when the worker started."""

    def __init__(self) -> None:
        self._due = 0.0
        self._findings: list[dict[str, str]] | None = None

    def report_if_due(self) -> None:
        """Stores a report if the previous one is ten seconds old."""
        if steady() >= self._due:
            self._due = steady() + REPORT_SECONDS
            if self._findings is None:
                self._findings = [asdict(finding) for finding in wrong_at_start()]
            report(self._findings)

    def leave(self) -> None:
        """Stores that this worker starts no more runs."""
        with database.write() as session:
            machines.leave(session=session, name=measurement.name(), worker=str(me()))


def report(findings: list[dict[str, str]]) -> None:
    """Measures this machine and stores the report."""
    machine = measurement.measure()
    machine.findings = findings
    with database.write() as session:
        machines.report(session=session, machine=machine)


def report_engine(engine: Engine) -> None:
    """Stores what an engine with machines of its own has."""
    if capacity := engine.capacity():
        with database.write() as session:
            machines.report_engine(session=session, name=engine.name.value, capacity=asdict(capacity))
