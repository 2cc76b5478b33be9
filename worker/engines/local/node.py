"""`python -m worker.engines.local.node RUN_ID ATTEMPT RANK`: the ranks of a run on one of its further machines.

A worker starts it for a row of `run_node`. It holds the row by a lease, starts the ranks, does what the row asks, and ends with the
attempt: when it cannot renew the lease, nobody may assume that its ranks still train, so it kills them.
"""

import logging
import os
import signal
import sys
import time
from pathlib import Path

import psutil
from pydantic import BaseModel

from training import redaction
from training.config.run_config import RunConfig
from training.errors import UserError
from training.files import write_whole
from training.run_folder.paths import CONFIG_FILE, SUPERVISOR_VARIABLE
from worker import allowed_rewards
from worker.machine import address, processes
from worker.machine.process_identity import hostname
from worker.settings import get_settings
from worker.store import database, nodes
from worker.store.tables import Run, RunNode
from worker.store.work import NODE, LeaseLost
from worker.supervision import launcher
from worker.supervision.lease import Lease
from worker.supervision.training_process import TrainingProcess, environment

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.5
MACHINES_FILE = "machines.json"
_PATIENCE_SECONDS = 30.0  # a network file system may show a new file late


class Meeting(BaseModel):
    """The attempt, and the address and port of its first machine."""

    attempt: int
    address: str
    port: int


def write_meeting(run_dir: Path, meeting: Meeting) -> None:
    """Writes the file, whole or not at all."""
    write_whole(run_dir / MACHINES_FILE, meeting.model_dump_json())


def read_meeting(run_dir: Path, attempt: int) -> Meeting:
    """The meeting of `attempt`. Raises UserError if the first machine's file is not visible here."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline:
        meeting = _read(run_dir / MACHINES_FILE)
        if meeting is not None and meeting.attempt == attempt:
            return meeting
        time.sleep(0.5)
    raise UserError(
        "LATHE_DATA_DIR",
        str(run_dir.parent.parent),
        f"is not the folder in which the run's first machine writes: {hostname()} does not see its files.",
        "Set it to the same shared folder on every machine, or set num_machines to 1.",
    )


def _read(path: Path) -> Meeting | None:
    try:
        return Meeting.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


class NodeSupervisor:
    """Starts and follows the ranks of one machine."""

    def __init__(self, run: Run, node: RunNode, lease: Lease[RunNode]) -> None:
        self._run, self._node, self._lease = run, node, lease
        self._settings = get_settings()
        self._run_dir = self._settings.runs_dir / run.id
        self._request = ""

    def run(self) -> int | None:
        """Runs the ranks to their end and returns the launcher's exit code; None if they were killed.

        Raises:
            UserError: the run's folder is not shared.
            LeaseLost: the attempt has ended, or the database was unreachable for too long.
        """
        meeting = read_meeting(self._run_dir, self._node.attempt)
        self._lease.renew()
        config = RunConfig.model_validate_json((self._run_dir / CONFIG_FILE).read_text(encoding="utf-8"))
        place = launcher.Node(self._node.rank, meeting.address, meeting.port)
        launch = launcher.launch(config, self._run_dir, self._node.devices, os.cpu_count() or 1, place)
        variables = environment(launch, self._run.id, self._settings, self._run.pause_at)
        variables |= allowed_rewards.variables(config)
        variables |= address.network_environment(address.own_address()) | {SUPERVISOR_VARIABLE: str(os.getpid())}
        trainer = TrainingProcess(launch.argv, self._run_dir, variables, output=log_name(self._node.rank))
        try:
            return self._follow(trainer)
        finally:
            processes.kill_descendants()

    def _follow(self, trainer: TrainingProcess) -> int | None:
        with self._lease.guarded(lambda _: trainer.kill("this machine lost contact with the run.")):
            while (code := trainer.exit_code()) is None:
                trainer.wait(_LOOK_SECONDS)
                node = self._lease.try_once(self._lease.keep)
                if node is None or node.request == self._request:
                    continue
                self._request = node.request
                if self._request == nodes.KILL:
                    trainer.kill("the request of the run's first machine.")
                    return None
                trainer.request_stop(_ranks(), "the request of the run's first machine.")
        if self._lease.gave_up:
            raise LeaseLost(self._lease.gave_up)
        return code


def log_name(rank: int) -> str:
    """The file in the run's folder to which the machine's launcher and ranks print."""
    return f"output-{rank}.log"


def _ranks() -> list[int]:
    """The children of the launcher: its own children are the ranks; theirs, such as compilers, are not."""
    launchers = psutil.Process().children()
    return [rank.pid for one in launchers for rank in one.children()]


def main(arguments: list[str]) -> int:
    """Holds and runs one machine's part. Returns 0, or 1 if another process has it or the attempt has ended."""
    redaction.start_logging()
    processes.set_child_subreaper()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    key = arguments[0], int(arguments[1]), int(arguments[2])
    lease = Lease(NODE, key)
    if not lease.adopt():
        return 1
    with database.read() as session:
        run, node = session.get_one(Run, key[0]), session.get_one(RunNode, key)
    code, problem = None, ""
    try:
        code = NodeSupervisor(run, node, lease).run()
    except UserError as error:
        problem = f"{error} {error.fix}"
    except LeaseLost as error:
        log.warning("%s", error)
    except Exception as error:
        log.exception("the ranks cannot be started")
        problem = f"{type(error).__name__}: {error}"
    processes.kill_descendants()
    with database.write() as session:
        nodes.end(session=session, node=node, exit_code=code, problem=problem)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
