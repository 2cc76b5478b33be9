"""The worker's reports about its machine, for the page System and `lathe system`."""

from worker.machine import measurement
from worker.machine.process_identity import me
from worker.store import database
from worker.store.system import machines
from worker.supervision.lease import steady

REPORT_SECONDS = 10.0


class Reporter:
    """Measures this machine and stores the report, every ten seconds."""

    def __init__(self) -> None:
        self._due = 0.0

    def report_if_due(self) -> None:
        """Stores a report if the previous one is ten seconds old."""
        if steady() >= self._due:
            self._due = steady() + REPORT_SECONDS
            report()

    def leave(self) -> None:
        """Stores that this worker starts no more runs."""
        with database.write() as session:
            machines.leave(session=session, name=measurement.name(), worker=str(me()))


def report() -> None:
    """Measures this machine and stores the report."""
    machine = measurement.measure()
    with database.write() as session:
        machines.report(session=session, machine=machine)
