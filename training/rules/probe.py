"""Rules on the probe (training/trainer/probe.py): settings with which it cannot be undone."""

from collections.abc import Iterator

from training.config.choices import Offload, Probe
from training.config.machine import Machine
from training.config.run_config import RunConfig
from training.rules.conflict import Conflict, rule


def cannot_probe(config: RunConfig) -> tuple[str, str]:
    """The setting that excludes a probe and the reason; both are empty if a probe is possible."""
    if config.streaming:
        return "streaming", "the longest rows of a stream are not known in advance"
    if config.sequence_parallel_size > 1:
        return "sequence_parallel_size", "the data loader splits the sequences, and the probe does not use it"
    if Offload.NVME in (config.offload_optimizer, config.offload_param):
        return "offload_optimizer", "optimizer state on a disk cannot be restored"
    return "", ""


def wants_probe(config: RunConfig, device: str) -> bool:
    """True if a run on `device` (cuda or another type) starts with a probe."""
    wanted = config.probe is Probe.ON or (config.probe is Probe.AUTO and device == "cuda")
    return wanted and not cannot_probe(config)[0]


@rule
def a_probe_must_be_undone(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    name, reason = cannot_probe(config)
    if config.probe is Probe.ON and name:
        yield Conflict(
            ("probe", name),
            f"This run cannot be probed: {reason}.",
            "Set probe to auto or off.",
            {"probe": "auto"},
        )
