"""Rules on the number of processes."""

from collections.abc import Iterator

from training.config.choices import Offload, Strategy
from training.config.machine import Machine
from training.config.run_config import RunConfig
from training.rules.conflict import Conflict, rule
from training.tables import Otherwise

_PROCESSES_PER_CORE = 4  # with more, the ranks' memory runs out or they time out while they wait for each other

_ACROSS_PROCESSES = Otherwise(
    "ZeRO shards the training state",
    {Strategy.DDP: "DDP copies the model", Strategy.FSDP: "FSDP shards the model"},
)


@rule
def one_process_needs_no_strategy(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    zero = config.strategy.zero_stage is not None
    offloads = zero and {config.offload_optimizer, config.offload_param} != {Offload.NONE} and machine.kind == "cuda"
    if config.num_processes > 1 or config.strategy is Strategy.SINGLE or offloads:
        return
    action = _ACROSS_PROCESSES[config.strategy]
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
    each, most = config.processes_per_machine, _PROCESSES_PER_CORE * machine.cores
    if machine.kind == "cpu" and 0 < most < each:
        fitting = machine.cores * config.num_machines
        yield Conflict(
            ("num_processes",),
            f"{each} processes would share {machine.cores} CPU cores.",
            f"Set num_processes to at most {fitting}.",
            {"num_processes": fitting, **({"strategy": "single"} if machine.cores == 1 else {})},
        )


@rule
def each_process_needs_a_gpu(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    each = config.processes_per_machine
    if machine.kind == "cuda" and each > machine.devices:
        fitting = machine.devices * config.num_machines
        yield Conflict(
            ("num_processes",),
            f"{each} processes need {each} GPUs, and this machine has {machine.devices}.",
            f"Set num_processes to at most {fitting}.",
            {"num_processes": fitting, **({"strategy": "single"} if machine.devices == 1 else {})},
        )


@rule
def machines_share_the_processes_equally(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    machines, processes = config.num_machines, config.num_processes
    if machines > 1 and processes % machines and config.strategy is not Strategy.SINGLE:
        more = machines * (processes // machines + 1)
        yield Conflict(
            ("num_machines", "num_processes"),
            f"{processes} processes cannot be divided equally among {machines} machines.",
            f"Set num_processes to a multiple of num_machines, such as {more}.",
            {"num_processes": more},
        )


@rule
def no_run_continues_on_more_machines_than_it_has(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.min_machines is not None and config.min_machines > config.num_machines > 1:
        yield Conflict(
            ("min_machines", "num_machines"),
            f"min_machines is {config.min_machines}, and num_machines is {config.num_machines}.",
            f"Set min_machines to at most {config.num_machines}.",
            {"min_machines": config.num_machines},
        )


@rule
def one_device_is_on_one_machine(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.num_machines > 1 and config.strategy is Strategy.SINGLE:
        yield Conflict(
            ("num_machines", "strategy"),
            f"strategy single trains on one device, and num_machines is {config.num_machines}.",
            "Set num_machines to 1, or strategy to ddp, fsdp or one of zero1 to zero3.",
            {"num_machines": 1},
        )


@rule
def several_machines_need_an_engine_that_has_them(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.num_machines > machine.most_machines and config.strategy is not Strategy.SINGLE:
        most = machine.most_machines
        yield Conflict(
            ("num_machines", "engine"),
            f"num_machines is {config.num_machines}, and a run of this installation can use {most} at most.",
            "Set num_machines to 1, or set up Slurm and set engine to slurm (docs/scale.md).",
            {"num_machines": most},
        )
