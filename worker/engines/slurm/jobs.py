"""Jobs of Slurm: what they are called, how they are submitted, and what squeue says about them. Pure."""

import hashlib
import re
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from training.config import slurm_options
from training.config.run_config import RunConfig
from worker.settings import ROOT, Settings
from worker.supervision.standby import SUPERVISOR_LOG

PENDING, RUNNING, CANCELLED = "PENDING", "RUNNING", "CANCELLED"
_ENDED = {
    "BOOT_FAIL", CANCELLED, "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT",
}  # fmt: skip
_LAUNCH_FAILED = "launch_failed_requeued_held"
_NAME = re.compile(r"lathe-([0-9a-f]{8})-([0-9a-z]{12})-(\d+)")
FORMAT = "%i|%T|%j|%P|%D|%N|%S|%r"
"""What `squeue` prints of a job: id, state, name, partition, nodes, node list, start, reason."""
supervisor_program = "worker.engines.job_side.supervisor"
ON_CPU = "cpu"
"""The GRES name that stands for nodes without GPUs."""


@dataclass(frozen=True)
class Job:
    """A job of a run. `starts_at`: when it started or is expected to, in seconds since the epoch; None if unknown."""

    id: str
    state: str
    run_id: str
    attempt: int
    partition: str = ""
    num_nodes: int = 1
    nodes: str = ""
    starts_at: float | None = None
    reason: str = ""

    @property
    def ended(self) -> bool:
        return self.state in _ENDED

    @property
    def failed_to_launch(self) -> bool:
        """True if a node could not start the job and Slurm holds it, until somebody releases it."""
        return self.state == PENDING and self.reason.replace(" ", "_") == _LAUNCH_FAILED

    def document(self) -> dict[str, Any]:
        """What the run's row keeps of it."""
        return {name: value for name, value in asdict(self).items() if name not in ("id", "run_id")}


def installation(settings: Settings) -> str:
    """Tells the jobs of this installation from those of others by the same user: a hash of its database's address."""
    return hashlib.sha256(settings.sqlalchemy_url.encode()).hexdigest()[:8]


def name(settings: Settings, run_id: str, attempt: int) -> str:
    """The name of the job that is submitted for the run's attempt; a lost answer of sbatch is found again by it."""
    return f"lathe-{installation(settings)}-{run_id}-{attempt}"


def parse(text: str, settings: Settings) -> list[Job]:
    """The jobs of this installation in squeue's answer in `FORMAT`."""
    ours = installation(settings)
    found = []
    for line in text.splitlines():
        parts = line.strip().split("|", 7)
        match = _NAME.fullmatch(parts[2]) if len(parts) == 8 else None
        if match and match[1] == ours:
            job_id, state, _, partition, count, nodes, start, reason = parts
            starts_at = float(start) if start.isdigit() else None
            numbers = int(count) if count.isdigit() else 1
            found.append(Job(job_id, state, match[2], int(match[3]), partition, numbers, nodes, starts_at, reason))
    return found


def options(config: RunConfig, settings: Settings) -> dict[str, str]:
    """The installation's options of the job, with those of the run in their place."""
    return slurm_options.parse(settings.slurm_options) | slurm_options.parse(config.slurm_options)


def gres(config: RunConfig, settings: Settings) -> str | None:
    """The GRES name of the GPUs that the run uses, or None on nodes without GPUs."""
    chosen = options(config, settings).get("gres", settings.slurm_gres)
    return None if chosen == ON_CPU else chosen


def excluded(config: RunConfig, settings: Settings, avoided: Iterable[str]) -> str:
    """The nodes that the run's job must not get, with commas between: those of its options and, if it takes several, `avoided`."""
    own = options(config, settings).get("exclude", "")
    return ",".join(filter(None, [own, *(sorted(avoided) if config.num_machines > 1 else ())]))


def submission(
    config: RunConfig, run_id: str, attempt: int, settings: Settings, machine: str, avoided: Iterable[str] = ()
) -> tuple[list[str], str]:
    """The command sbatch, and the script for its standard input.

    `machine` identifies this boot of this machine (job_side/claiming.py). A run on several nodes does not get those `avoided`.
    """
    chosen = options(config, settings)
    if nodes := excluded(config, settings, avoided):
        chosen["exclude"] = nodes
    gpus = gres(config, settings)
    argv = [
        "sbatch",
        "--parsable",
        f"--job-name={name(settings, run_id, attempt)}",
        f"--comment=Lathe run {run_id}, attempt {attempt}",
        f"--nodes={config.num_machines}",
        f"--ntasks-per-node={config.processes_per_machine}",  # for their cores; srun starts one task on each node
        f"--output={settings.runs_dir / run_id / SUPERVISOR_LOG}",
        "--open-mode=append",
        "--requeue",
        f"--signal=B:USR1@{settings.slurm_grace_seconds}",
        f"--chdir={ROOT}",
        *([f"--gres={gpus}:{config.processes_per_machine}"] if gpus else []),
        *(f"--{option}={value}" for option, value in chosen.items() if option != "gres"),
    ]
    program = f'exec "{Path(sys.executable)}" -m {supervisor_program} {run_id} {machine}'
    return argv, "\n".join(["#!/bin/sh", settings.slurm_lines, program, ""])
