"""The real supervisor for benchmarks.chaos; runs whose name begins with "light" train with light ranks."""

import sys
from pathlib import Path

from training.config import RunConfig
from worker import launcher, supervisor
from worker.launcher import Launch
from worker.settings import ROOT

DEVICE = "LATHE_CHAOS_DEVICE"  # in a worker's environment: the name of its device
LIGHT = "light"
REAL = "real"
MODULE = "benchmarks.chaos_supervisor"
_HERE = Path(__file__)


def command(*arguments: str) -> list[str]:
    """As worker.starting.supervisor_command."""
    return [sys.executable, "-m", MODULE, *arguments]


def launch(config: RunConfig, run_dir: Path, devices: list[str], cpu_count: int) -> Launch:
    """The real command with the real program in a wrapper, or that of the light ranks."""
    env = {"PYTHONPATH": str(ROOT)}
    if config.name.startswith(LIGHT):
        return Launch([sys.executable, str(_HERE.with_name("chaos_ranks.py")), "launch", str(run_dir)], env)
    real = launcher.launch(config, run_dir, devices, cpu_count)
    place = real.argv.index("--module")
    return Launch([*real.argv[:place], str(_HERE.with_name("chaos_train.py")), *real.argv[place + 2 :]], real.env | env)


if __name__ == "__main__":
    sys.exit(supervisor.main(sys.argv[1:], launch=launch))
