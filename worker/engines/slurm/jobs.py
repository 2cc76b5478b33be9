"""Jobs of Slurm: what they are called, how they are submitted, what squeue says about them, and why they wait. Pure."""

import hashlib
import re
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from training.config import slurm_options
from training.config.run_config import RunConfig
from training.run_folder.paths import SUPERVISOR_LOG
from worker.settings import ROOT, Settings

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
_REASONS = {
    "Priority": "other jobs have a higher priority",
    "Resources": "the nodes are in use",
    "Dependency": "it depends on another job",
    "BeginTime": "Slurm starts it again after a pause",
    "JobHeldUser": "the job is held; release it with scontrol release",
    "JobHeldAdmin": "an administrator holds the job",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition accepts no jobs to start",
    "PartitionNodeLimit": "it asks for more nodes than the partition allows",
    "PartitionTimeLimit": "its time limit is longer than that of the partition",
    "PartitionConfig": "the partition cannot give it these nodes",
    "ReqNodeNotAvail": "nodes that it needs are down, drained or reserved",
    "Reservation": "its reservation has not begun",
    "Licenses": "licenses are in use",
    "NodeDown": "a node that it needs is down",
    "BadConstraints": "no nodes have these features",
    "InvalidAccount": "the account is not valid",
    "InvalidQOS": "the QoS is not valid",
    "launch_failed_requeued_held": "a node could not start it; Lathe submits it again",
}
_LIMITS = (
    ("QOSMaxJobsPerUser", "the QoS allows no more jobs of this user at once"),
    ("QOS", "a limit of the QoS is reached"),
    ("Assoc", "a limit of the account is reached"),
    ("MaxJobs", "the limit of running jobs is reached"),
)


_REFUSALS = (
    (
        ("gres", "tres"),
        "Change gres in slurm_options, or LATHE_SLURM_GRES: sinfo --format=%G lists the names of this cluster.",
    ),
    (("partition",), "Change partition in slurm_options or LATHE_SLURM_OPTIONS: sinfo lists the partitions."),
    (("account",), "Change account in slurm_options or LATHE_SLURM_OPTIONS: sacctmgr show associations lists them."),
    (("qos",), "Change qos in slurm_options or LATHE_SLURM_OPTIONS."),
    (("time limit", "time specification"), "Change time in slurm_options or LATHE_SLURM_OPTIONS."),
    (("feature", "constraint"), "Change constraint in slurm_options or LATHE_SLURM_OPTIONS."),
    (("node count", "node configuration", "nodes"), "Use fewer machines or processes, or change slurm_options."),
)


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

    `machine` identifies this boot of this machine (job_side/supervisor.py). A run on several nodes does not get those `avoided`.
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


def fix_of(refusal: str) -> str:
    """What to change when sbatch refuses a job with this message."""
    plain = refusal.lower()
    fixes = (fix for words, fix in _REFUSALS if any(word in plain for word in words))
    return f"{next(fixes, 'Change slurm_options or LATHE_SLURM_OPTIONS.')} Then resume the run."


def reason_in_words(reason: str) -> str:
    """Slurm's reason, such as `Priority`, as a clause; one that is not known here as Slurm writes it."""
    plain = reason.split(",", maxsplit=1)[0].strip().replace(" ", "_")
    if plain in _REASONS:
        return _REASONS[plain]
    return next((words for start, words in _LIMITS if plain.startswith(start)), f"Slurm says {reason}")


def waiting_sentence(job_id: str, job: dict[str, Any], now: float) -> str:
    """Why the run waits and for how long, from what its row keeps of its job. Empty if the job does not wait.

    "Waits for 2 nodes of partition gpu: other jobs have a higher priority. Slurm expects it to start in about 3 h."
    """
    if job.get("state") == RUNNING:
        return f"Slurm job {job_id} starts on {job.get('nodes') or 'its nodes'}."
    if job.get("state") != PENDING:
        return f"Slurm job {job_id} is {str(job.get('state', '')).lower() or 'submitted'}."
    count, partition = int(job.get("num_nodes") or 1), job.get("partition")
    nodes = "a node" if count == 1 else f"{count} nodes"
    place = f"{nodes} of partition {partition}" if partition else nodes
    reason = str(job.get("reason") or "None")
    why = "" if reason == "None" else f": {reason_in_words(reason)}"
    return f"Waits for {place}{why}.{_expected(job.get('starts_at'), now)}"


def _expected(starts_at: float | None, now: float) -> str:
    if starts_at is None or starts_at <= now:
        return ""
    return f" Slurm expects it to start in about {_rounded(starts_at - now)}."


def _rounded(seconds: float) -> str:
    if seconds < 90:
        return "a minute"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.0f} days"
