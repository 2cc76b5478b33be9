"""Why a Slurm job waits, in words. Pure."""

from typing import Any

from worker.engines.slurm.jobs import PENDING, RUNNING

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
