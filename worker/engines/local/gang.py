"""`python -m worker.engines.local.gang RUN_ID ATTEMPT`: the supervisor of a run on several machines, on the first of them.

It leads: it places the other machines' parts (worker/store/nodes.py), starts the ranks of its own, and ends everything when one
machine fails or is lost. All else is the same as for one machine.
"""

import logging
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from training import redaction
from training.config.run_config import RunConfig
from training.run_folder.paths import LOG_FILE
from worker.engines.local import placement
from worker.engines.local.node import Meeting, log_name, write_meeting
from worker.machine import address
from worker.machine.process_identity import hostname
from worker.settings import get_settings
from worker.store import database, nodes
from worker.store.database import UNREACHABLE
from worker.store.tables import RunNode
from worker.supervision import launcher
from worker.supervision.launcher import Launch, Node
from worker.supervision.lease import steady
from worker.supervision.report_reader import Tail
from worker.supervision.supervisor import Supervisor
from worker.supervision.training_process import Graces, TrainingProcess

log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
_START_SECONDS = 90.0  # a worker looks every five seconds; an overloaded machine takes longer
_END_SECONDS = 30.0  # for other machines to end after the first one
_KILL_SECONDS = 10.0


class GangTraining(TrainingProcess):
    """The ranks on all machines of a run: those of this one as a process, the others through their rows."""

    _several_machines = True

    def __init__(
        self, argv: list[str], run_dir: Path, env: Mapping[str, str], *, run_id: str, attempt: int, devices: list[str]
    ) -> None:
        self._run_id, self._attempt = run_id, attempt
        further = {host: own for host, own in placement.hosts(devices).items() if host != hostname()}
        self._logs = [(host, Tail(path, _size(path))) for host, path in _logs(run_dir, further)]
        self._output = run_dir / LOG_FILE
        with database.write() as session:
            nodes.place(session=session, run_id=run_id, attempt=attempt, devices_of=further)
        self._nodes: list[RunNode] = []
        self._began = self._looked = steady()
        self._first_ended: float | None = None
        super().__init__(argv, run_dir, env)

    def exit_code(self) -> int | None:
        """The exit code of this machine's launcher once all machines have ended, or 1 as soon as one is lost or fails."""
        code = super().exit_code()
        self._look()
        if not self.lost:
            self.lost_host, self.lost = self._first_problem()
        if self.lost or (code is None and self._one_failed()):
            super().clear(self.lost or "the ranks of another machine had failed.")
            self._copy_logs()
            return code or 1
        if code is None:
            return None
        self._first_ended = self._first_ended or steady()
        # Ranks here fail at once when another machine is lost, which only its lease shows.
        patience = _END_SECONDS if code == 0 else get_settings().lease_seconds + _END_SECONDS
        if not self._all_ended() and steady() - self._first_ended < patience:
            return None
        self._copy_logs()
        return code

    def request_stop(self, ranks: Iterable[int], why: str) -> None:
        super().request_stop(ranks, why)
        self._ask(nodes.STOP)

    def kill_ranks(self, ranks: Iterable[int], why: str) -> None:
        super().kill_ranks(ranks, why)
        self._ask(nodes.KILL)

    def gone(self, ranks: Mapping[int, int]) -> list[int]:  # noqa: ARG002
        """None: torchrun on a rank's machine ends the others there, and `exit_code` all machines."""
        return []

    def clear(self, why: str) -> None:
        """Kills the ranks of all machines and waits up to _KILL_SECONDS. A machine without contact does so when its lease ends."""
        super().clear(why)
        self._ask(nodes.KILL)
        deadline = steady() + _KILL_SECONDS
        while self._nodes and not self._all_ended() and steady() < deadline:
            self.wait(_LOOK_SECONDS)
            self._looked = 0.0
            if not self._look():
                return

    def _ask(self, request: str) -> None:
        try:
            with database.write() as session:
                nodes.ask(session=session, run_id=self._run_id, attempt=self._attempt, request=request)
        except UNREACHABLE as error:
            log.warning("the database is unreachable: %s", error)

    def _look(self) -> bool:
        """Reads the other machines' rows and output, once per second. False if the database is unreachable."""
        if steady() - self._looked < _LOOK_SECONDS:
            return True
        self._looked = steady()
        self._copy_logs()
        try:
            with database.read() as session:
                self._nodes = nodes.of_attempt(session=session, run_id=self._run_id, attempt=self._attempt)
                self._now = database.now(session=session)
        except UNREACHABLE:
            return False
        return True

    def _first_problem(self) -> tuple[str, str]:
        """The first machine that is lost or could not start, and what happened to it, as a sentence; empty if none is."""
        for node in self._nodes:
            if node.problem:
                return node.host, f"Machine {node.host}: {node.problem}"
        for node in self._nodes:
            if node.ended_at is None and node.expires_at is not None and node.expires_at < self._now:
                return node.host, f"Lost contact with machine {node.host} for {get_settings().lease_seconds:.0f} s."
        late = [node.host for node in self._nodes if node.holder is None and node.ended_at is None]
        if late and steady() - self._began > _START_SECONDS:
            problem = f"Machine {', '.join(late)} did not start its part of the run within {_START_SECONDS:.0f} s."
            return late[0], problem
        return "", ""

    def _one_failed(self) -> bool:
        return any(node.ended_at is not None and node.exit_code != 0 for node in self._nodes)

    def _all_ended(self) -> bool:
        return all(node.ended_at is not None for node in self._nodes)

    def _copy_logs(self) -> None:
        """Appends what the other machines printed to the run's log, each line with the machine's name."""
        lines = [f"[{host}] ".encode() + line + b"\n" for host, tail in self._logs for line in tail.read()]
        if lines:
            with self._output.open("ab", buffering=0) as output:
                output.write(b"".join(lines))


def _logs(run_dir: Path, further: Mapping[str, object]) -> list[tuple[str, Path]]:
    return [(host, run_dir / log_name(rank)) for rank, host in enumerate(further, 1)]


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


class GangSupervisor(Supervisor):
    """The supervisor of a run on several machines."""

    def __init__(self, run_id: str, attempt: int, *, graces: Graces | None = None) -> None:
        super().__init__(run_id, attempt, launch=self._launch_here, start=self._start_all, graces=graces)
        self._devices: list[str] = []

    def _launch_here(self, config: RunConfig, run_dir: Path, devices: list[str], cpu_count: int) -> Launch:
        self._devices = devices
        own = address.own_address()
        meeting = Meeting(attempt=self._attempt, address=own, port=address.free_port())
        write_meeting(run_dir, meeting)
        here = placement.hosts(devices)[hostname()]
        launch = launcher.launch(config, run_dir, here, cpu_count, Node(0, own, meeting.port))
        return Launch(launch.argv, launch.env | address.network_environment(own))

    def _start_all(self, argv: list[str], run_dir: Path, env: Mapping[str, str]) -> TrainingProcess:
        if len(placement.hosts(self._devices)) == 1:  # the others are missing
            return TrainingProcess(argv, run_dir, env)
        return GangTraining(argv, run_dir, env, run_id=self._run_id, attempt=self._attempt, devices=self._devices)


def main(arguments: list[str], graces: Graces | None = None) -> int:
    """Supervises the attempt. Returns 0, or 1 if another supervisor may have the run now."""
    redaction.start_logging()
    return GangSupervisor(arguments[0], int(arguments[1]), graces=graces).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
