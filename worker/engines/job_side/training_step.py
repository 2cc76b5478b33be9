"""The training of a run as a step of its Slurm job: one srun, which starts the ranks of every node."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from training.config.run_config import RunConfig
from worker.engines.job_side.node import KILL, KILL_RANKS, STOP
from worker.engines.slurm import jobs
from worker.machine import address, processes
from worker.settings import ROOT, get_settings
from worker.supervision.launcher import Launch
from worker.supervision.training_process import TrainingProcess

_KILL_SECONDS = 10.0


NODE_PROGRAM = "worker.engines.job_side.node"


def launch(
    config: RunConfig, run_dir: Path, _devices: list[str], _cpu_count: int, *, program: str = NODE_PROGRAM
) -> Launch:
    """The command srun that starts the ranks of every node of this job. `program` is the module that it runs on each."""
    settings = get_settings()
    nodes, kind = str(config.num_machines), "gpu" if jobs.gres(config, settings) else jobs.ON_CPU
    argv = ["srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "--kill-on-bad-exit=1"]
    # The tasks share the whole nodes, and the launcher divides them among its ranks.
    argv += ["--cpu-bind=none", "--mpi=none", f"--chdir={run_dir}"]
    python = sys.executable
    if settings.slurm_container:
        mounts = ",".join(f"{folder}:{folder}" for folder in (settings.data_dir, ROOT))
        argv += [f"--container-image={settings.slurm_container}", f"--container-mounts={mounts}"]
        python = "python3"
    argv += [python, "-m", program, str(run_dir), str(address.free_port()), kind]
    return Launch(argv, {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))})


class TrainingStep(TrainingProcess):
    """The ranks on all nodes. Requests reach the process on each node through srun's standard input, without the controller."""

    def __init__(self, argv: list[str], run_dir: Path, env: Mapping[str, str]) -> None:
        super().__init__(argv, run_dir, env, stdin=subprocess.PIPE)
        self._requested: set[str] = set()

    def exit_code(self) -> int | None:
        """As srun reports it: 128 + N for signal N becomes -N. Slurm ends steps so (requeue, a lost node): the run is retried."""
        code = super().exit_code()
        return 128 - code if code is not None and code > 128 else code

    def request_stop(self, ranks: Iterable[int]) -> None:  # noqa: ARG002
        self._request(STOP)

    def kill_ranks(self, ranks: Iterable[int]) -> None:  # noqa: ARG002
        self._request(KILL_RANKS)

    def any_gone(self, ranks: Iterable[int]) -> bool:  # noqa: ARG002
        """False: torchrun on the rank's node and `--kill-on-bad-exit` end the others, whose processes cannot be seen from here."""
        return False

    def kill(self) -> None:
        """Kills the launchers and ranks of all nodes, then srun. Slurm ends what is left with the job."""
        if self.exit_code() is None:
            self._request(KILL)
            processes.wait_for_end(self._launcher, _KILL_SECONDS)
        processes.kill_descendants()

    def _request(self, request: str) -> None:
        """Sends a request once to the process on each node."""
        stdin = self._launcher.stdin
        if stdin is not None and request not in self._requested:
            self._requested.add(request)
            with contextlib.suppress(BrokenPipeError):  # srun has ended
                stdin.write(f"{request}\n".encode())
                stdin.flush()
