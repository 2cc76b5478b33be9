"""Rules on offload to host memory and NVMe."""

from collections.abc import Iterator

from training.config.choices import Offload, Strategy
from training.config.machine import Machine
from training.config.run_config import RunConfig
from training.rules.conflict import Conflict, rule

_OFFLOADS = ("offload_param", "offload_optimizer")


@rule
def optimizer_offload_needs_zero(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.offload_optimizer is Offload.NONE or (config.strategy.zero_stage or 0) >= 1:
        return
    if config.strategy is Strategy.FSDP:
        reason = "FSDP offloads parameters, gradients and optimizer state together, with offload_param."
        fix, changes = "Set offload_optimizer to none and offload_param to cpu.", {"offload_param": "cpu"}
    else:
        reason = "Only ZeRO stages 1 to 3 can offload the optimizer state."
        fix, changes = "Set offload_optimizer to none, or strategy to zero2.", {}
    yield Conflict(("offload_optimizer", "strategy"), reason, fix, changes | {"offload_optimizer": "none"})


@rule
def parameter_offload_needs_zero3(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.offload_param is not Offload.NONE and config.strategy not in (Strategy.ZERO3, Strategy.FSDP):
        yield Conflict(
            ("offload_param", "strategy"),
            "Only ZeRO stage 3 and FSDP can offload parameters.",
            "Set offload_param to none, or strategy to zero3 or fsdp.",
            {"offload_param": "none"},
        )


@rule
def nvme_offload_needs_zero3(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    for name in _OFFLOADS:
        offloads = getattr(config, name) is Offload.NVME
        if offloads and config.strategy is not Strategy.ZERO3:
            yield Conflict(
                (name, "strategy"),
                "Only ZeRO stage 3 can offload to NVMe.",
                f"Set {name} to cpu, or strategy to zero3.",
                {name: "cpu"},
            )
        elif offloads and config.nvme_path is None:
            yield Conflict(
                (name, "nvme_path"),
                f"{name} is nvme, and nvme_path is empty.",
                f"Set nvme_path to a folder on a fast local disk, or {name} to cpu.",
                {name: "cpu"},
            )
