"""Rules on the number of processes."""

from collections.abc import Iterator

from training.config.choices import Offload, Strategy
from training.config.machine import Machine
from training.config.run_config import RunConfig
from training.rules.conflict import Conflict, rule

_PROCESSES_PER_CORE = 4  # with more, the ranks' memory runs out or they time out while they wait for each other


@rule
def one_process_needs_no_strategy(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    zero = config.strategy.zero_stage is not None
    offloads = zero and {config.offload_optimizer, config.offload_param} != {Offload.NONE} and machine.kind == "cuda"
    if config.num_processes > 1 or config.strategy is Strategy.SINGLE or offloads:
        return
    action = {Strategy.DDP: "DDP copies the model", Strategy.FSDP: "FSDP shards the model"}.get(
        config.strategy, "ZeRO shards the training state"
    )
    processes = min(2, machine.devices) if machine.kind == "cuda" else 2
    fix = "Set strategy to single" + (f", or num_processes to {processes}." if processes > 1 else ".")
    yield Conflict(
        ("strategy", "num_processes"),
        f"{action} across processes, and num_processes is 1.",
        fix,
        {"strategy": "single"},
    )


@rule
def several_processes_need_a_strategy(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.num_processes > 1 and config.strategy is Strategy.SINGLE:
        yield Conflict(
            ("strategy", "num_processes"),
            f"strategy single trains on one device, and num_processes is {config.num_processes}.",
            "Set num_processes to 1, or strategy to ddp, fsdp or one of zero1 to zero3.",
            {"num_processes": 1},
        )


@rule
def processes_share_the_cores(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    most = _PROCESSES_PER_CORE * machine.cores
    if machine.kind == "cpu" and 0 < most < config.num_processes:
        yield Conflict(
            ("num_processes",),
            f"{config.num_processes} processes would share {machine.cores} CPU cores.",
            f"Set num_processes to at most {machine.cores}.",
            {"num_processes": machine.cores, **({"strategy": "single"} if machine.cores == 1 else {})},
        )


@rule
def each_process_needs_a_gpu(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if machine.kind == "cuda" and config.num_processes > machine.devices:
        yield Conflict(
            ("num_processes",),
            f"{config.num_processes} processes need {config.num_processes} GPUs, and this machine has {machine.devices}.",
            f"Set num_processes to at most {machine.devices}.",
            {"num_processes": machine.devices, **({"strategy": "single"} if machine.devices == 1 else {})},
        )
