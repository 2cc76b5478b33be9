"""`python -m worker.engines.job_side.node RUN_FOLDER PORT cpu|gpu`: starts the ranks of one node; srun runs it on every node.

Needs neither the database nor a daemon. It ends when its launcher does and kills what is left. The supervisor sends it requests
through srun's standard input, a line each. Signals would not do: Slurm sends them to every process of the step, and srun takes a
SIGTERM as the order to end the step.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import psutil

from training.config.run_config import RunConfig
from training.run_folder.paths import CONFIG_FILE, SUPERVISOR_VARIABLE
from worker.engines.slurm.jobs import ON_CPU
from worker.machine import processes
from worker.supervision import launcher

STOP, KILL_RANKS, KILL = "stop", "kill ranks", "kill"
"""The requests: the ranks save and exit; the ranks are killed, and the launcher reports it; everything is killed."""


class NodeProcess:
    """The launcher of this node and its ranks."""

    def __init__(self, argv: list[str], env: dict[str, str]) -> None:
        # Slurm sends SIGTERM to all processes of a step that it is about to end. It is meant for the ranks, which install a
        # handler; torchrun would kill ranks that still save 30 s later.
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)
        prepare = processes.dying_with_parent(signal.SIGKILL)
        self._launcher = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, preexec_fn=prepare)  # noqa: PLW1509

    def wait(self) -> int:
        """Carries out requests until the launcher has ended, kills what it left, and returns its exit code."""
        threading.Thread(target=self._obey, name="requests", daemon=True).start()
        code = self._launcher.wait()
        processes.kill_descendants()
        return code if code >= 0 else 128 - code

    def _obey(self) -> None:
        for line in sys.stdin:
            match line.strip():
                case "stop":
                    processes.send(self._ranks(), signal.SIGTERM)
                case "kill ranks":
                    processes.send(self._ranks(), signal.SIGKILL)
                case "kill":
                    processes.kill_descendants()

    def _ranks(self) -> list[psutil.Process]:
        """The launcher's own children, without their compilers and the like."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self._launcher.pid).children()
        return []


Command = Callable[[RunConfig, Path, bool, launcher.Node], list[str]]


def _command(config: RunConfig, run_dir: Path, on_cpu: bool, node: launcher.Node) -> list[str]:
    return launcher.command(config, run_dir, on_cpu=on_cpu, node=node)


def main(arguments: list[str], *, command: Command = _command) -> int:
    """Runs this node's launcher to its end. Returns its exit code. `command` builds the launcher's command."""
    run_dir, port, kind = Path(arguments[0]), int(arguments[1]), arguments[2]
    processes.set_child_subreaper()
    config = RunConfig.model_validate_json((run_dir / CONFIG_FILE).read_text(encoding="utf-8"))
    on_cpu = kind == ON_CPU
    # The address of the first node, as the other nodes know it: srun was started there.
    node = launcher.Node(int(os.environ["SLURM_NODEID"]), os.environ["SLURM_LAUNCH_NODE_IPADDR"], port)
    cores = int(os.environ.get("SLURM_CPUS_ON_NODE") or os.cpu_count() or 1)
    env = dict(os.environ) | launcher.environment(config, on_cpu=on_cpu, cpu_count=cores)
    env |= {
        SUPERVISOR_VARIABLE: str(os.getpid()),  # on this node; the ranks end with it
        "PET_SIGNALS_TO_HANDLE": "SIGINT",  # torchrun's option --signals-to-handle
    }
    return NodeProcess(command(config, run_dir, on_cpu, node), env).wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
