"""Starts the ranks of a node of a Slurm job for benchmarks.chaos; runs of the kind light use light ranks."""

import sys
from pathlib import Path

from benchmarks.chaos.kinds import LIGHT, kind_of
from training.config.run_config import RunConfig
from worker.engines.job_side import node
from worker.supervision import launcher
from worker.supervision.launcher import Node

_HERE = Path(__file__)


def command(config: RunConfig, run_dir: Path, on_cpu: bool, place: Node) -> list[str]:
    """The command of a node: light ranks, or the launcher with train.py of this folder as the program."""
    if kind_of(config.name) == LIGHT:
        ranks = [sys.executable, str(_HERE.with_name("ranks.py")), "launch", str(run_dir)]
        return ranks if config.num_machines == 1 else [*ranks, str(place.rank), place.address, str(place.port)]
    real = launcher.command(config, run_dir, on_cpu=on_cpu, node=place)
    at = real.index("--module")
    return [*real[:at], str(_HERE.with_name("train.py")), *real[at + 2 :]]


if __name__ == "__main__":
    sys.exit(node.main(sys.argv[1:], command=command))
