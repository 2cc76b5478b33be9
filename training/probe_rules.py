"""Where the probe (training/probe.py) can leave a run as it would have been. Nothing here imports torch."""

from collections.abc import Iterator

from training.config import Offload, Probe, RunConfig
from training.rules import Conflict, Machine, rule


def unfit(config: RunConfig) -> tuple[str, str]:
    """The setting that a probe does not go with, and why; both empty where it does."""
    if config.streaming:
        return "streaming", "which rows of a stream are the longest is not known before they are read"
    if config.sequence_parallel_size > 1:
        return "sequence_parallel_size", "parts of a sequence are handed out by the loader, which the probe passes by"
    if Offload.NVME in (config.offload_optimizer, config.offload_param):
        return "offload_optimizer", "state that lies on a disk cannot be put back"
    return "", ""


def wants_probe(config: RunConfig, device: str) -> bool:
    """Whether a run on `device`, cuda or another, begins with a probe."""
    wanted = config.probe is Probe.ON or (config.probe is Probe.AUTO and device == "cuda")
    return wanted and not unfit(config)[0]


@rule
def a_probe_leaves_no_trace(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    name, reason = unfit(config)
    if config.probe is Probe.ON and name:
        yield Conflict(
            ("probe", name),
            f"A probe cannot come before this run: {reason}.",
            "Set probe to auto or off.",
            {"probe": "auto"},
        )
