"""The worker's reports about its machine, for the page System and `lathe system`."""

from dataclasses import asdict

from worker.doctor.checks import wrong_at_start
from worker.engines.registry import engines
from worker.machine import measurement
from worker.machine.process_identity import me
from worker.store import database, machines
from worker.supervision.lease import steady

REPORT_SECONDS = 10.0


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
            report_engines()

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


def report_engines() -> None:
    """Stores what the engines with machines of their own have."""
    for engine in engines():
        if engine.abilities.queues_itself:
            capacity = asdict(engine.capacity())
            with database.write() as session:
                machines.report_engine(session=session, name=engine.name.value, capacity=capacity)
