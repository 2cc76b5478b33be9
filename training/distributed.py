"""The ranks: who they are, where they run, and how each holds its part."""

import os
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import DistributedType

from training.config import RunConfig
from training.events import Note
from training.report import Report
from training.rules import Machine


def local_machine() -> Machine:
    """This machine as torch sees it."""
    if not torch.cuda.is_available():
        return Machine()
    count = torch.cuda.device_count()
    names = [torch.cuda.get_device_name(index) for index in range(count)]
    memory = [torch.cuda.get_device_properties(index).total_memory for index in range(count)]
    return Machine("cuda", count, names, memory, torch.cuda.is_bf16_supported(including_emulation=False))


def start(config: RunConfig, machine: Machine, report: Report) -> PartialState:
    """Joins the ranks.

    On CPU the state is configured by hand: accelerate would either turn DeepSpeed off without a word or give each rank a
    world of its own. `describe` says afterwards what really runs.
    """
    if config.strategy.zero_stage is not None:
        tell_of_compiling(report)
    if machine.kind == "cuda":
        return PartialState()
    state = PartialState(cpu=True)
    if config.strategy.zero_stage is not None:
        import deepspeed

        # Before the model is loaded: ZeRO-3 shards weights as they are read, and must know the world by then.
        deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)
        state.distributed_type = DistributedType.DEEPSPEED
    return state


def tell_of_compiling(report: Report) -> None:
    """Makes a phase of each operator that DeepSpeed compiles: about a minute at its first use on a machine, then cached."""
    from deepspeed.ops.op_builder.builder import OpBuilder
    from torch.utils.cpp_extension import _get_build_directory

    load = OpBuilder.jit_load

    def load_and_tell(builder: Any, verbose: bool = True) -> Any:
        if list(Path(_get_build_directory(builder.name, verbose=False)).glob("*.so")):
            return load(builder, verbose)
        report.once(Note(message=f"DeepSpeed compiles its operator {builder.name}: about a minute, once on a machine."))
        with report.during("compiling DeepSpeed operators"):
            return load(builder, verbose)

    OpBuilder.jit_load = load_and_tell


def leave() -> None:
    """Ends the ranks' fellowship: what follows is plain work in one process, also for a model that is loaded then."""
    import torch.distributed as dist
    from transformers.integrations.deepspeed import unset_hf_deepspeed_config

    unset_hf_deepspeed_config()
    if dist.is_initialized():
        dist.destroy_process_group()


def describe(model: torch.nn.Module) -> dict[str, Any]:
    """How the wrapped model really runs: its engine's class, ZeRO stage, world size, and the elements held by this rank.

    `parameter_shard` counts parameter elements on this rank of `parameters` in all; `optimizer_shard` the elements whose
    optimizer state this rank keeps of `optimized` in all.
    """
    engine: Any = model
    world = int(os.environ.get("WORLD_SIZE", "1"))
    parameters = list(model.parameters())
    held = [parameter.ds_tensor if hasattr(parameter, "ds_tensor") else parameter for parameter in parameters]
    whole = [int(getattr(parameter, "ds_numel", parameter.numel())) for parameter in parameters]
    trainable = sum(size for parameter, size in zip(parameters, whole, strict=True) if parameter.requires_grad)
    stage = engine.zero_optimization_stage() if hasattr(engine, "zero_optimization_stage") else None
    return {
        "engine": type(model).__name__,
        "stage": stage,
        "world_size": world,
        "parameter_shard": sum(tensor.numel() for tensor in held),
        "parameters": sum(whole),
        "optimizer_shard": _optimizer_elements(model, trainable) if stage else trainable,
        "optimized": trainable,
    }


def _optimizer_elements(engine: Any, trainable: int) -> int:
    """Elements of the fp32 partitions that ZeRO's optimizer keeps on this rank."""
    optimizer = engine.optimizer
    for name in ("single_partition_of_fp32_groups", "fp32_partitioned_groups_flat"):
        if hasattr(optimizer, name):
            return sum(int(group.numel()) for group in getattr(optimizer, name))
    return trainable
