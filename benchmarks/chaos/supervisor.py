"""Runs Lathe's supervisor for benchmarks.chaos; runs of the kind light use light ranks."""

import sys
from pathlib import Path

from benchmarks.chaos.kinds import LIGHT, kind_of
from training.config.run_config import RunConfig
from worker.settings import ROOT
from worker.supervision import launcher, supervisor
from worker.supervision.launcher import Launch

DEVICE = "LATHE_CHAOS_DEVICE"  # in a worker's environment: the name of its device
MODULE = "benchmarks.chaos.supervisor"
_HERE = Path(__file__)


def command(*arguments: str) -> list[str]:
    """Returns a supervisor's command; replaces worker.engines.local.starting.supervisor_command."""
    return [sys.executable, "-m", MODULE, *arguments]


def launch(config: RunConfig, run_dir: Path, devices: list[str], cpu_count: int) -> Launch:
    """Returns the command of the light ranks, or the launcher's command with train.py of this folder as the program."""
    env = {"PYTHONPATH": str(ROOT)}
    if kind_of(config.name) == LIGHT:
        return Launch([sys.executable, str(_HERE.with_name("ranks.py")), "launch", str(run_dir)], env)
    real = launcher.launch(config, run_dir, devices, cpu_count)
    place = real.argv.index("--module")
    return Launch([*real.argv[:place], str(_HERE.with_name("train.py")), *real.argv[place + 2 :]], real.env | env)


if __name__ == "__main__":
    sys.exit(supervisor.main(sys.argv[1:], launch=launch))
