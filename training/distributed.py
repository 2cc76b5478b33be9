"""The ranks: who they are, where they run, and how each holds its part."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from accelerate import PartialState
from accelerate.utils import DistributedType
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy
from torch.distributed.tensor import DTensor
from transformers import TrainingArguments

from training.compiling import refuse_unfit_nvme, tell_of_compiling
from training.config import Precision, RunConfig, Strategy
from training.report import Report
from training.rules import Machine

_NO_LIMIT = timedelta(days=30)


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
        refuse_unfit_nvme(config)
    if machine.kind == "cuda":
        return PartialState()
    state = PartialState(cpu=True)
    if config.strategy is Strategy.FSDP:
        state.distributed_type = DistributedType.MULTI_GPU  # FSDP is turned on for this type alone
    if config.strategy.zero_stage is not None:
        import deepspeed

        # Before the model is loaded: ZeRO-3 shards weights as they are read, and must know the world by then.
        deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)
        state.distributed_type = DistributedType.DEEPSPEED
    return state


@contextmanager
def main_rank_works(name: str) -> Iterator[bool]:
    """Rank 0 does what is within, which may take long, while the others wait behind it. True on rank 0.

    They wait at the store that the ranks met at, without a time limit: a collective that waits for a rank that hashes a
    checkpoint of hundreds of gigabytes is ended by NCCL after ten minutes, and the run with it. `name` is used once.
    """
    if not (dist.is_initialized() and dist.get_world_size() > 1):
        yield True
        return
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 0:
        yield True
        store.set(name, "done")
    else:
        yield False
        store.wait([name], _NO_LIMIT)


def set_fsdp_policies(arguments: TrainingArguments, machine: Machine, precision: Precision) -> None:
    """The parts of FSDP's settings that are objects of torch; nothing where the strategy is another."""
    given = arguments.fsdp_plugin_args
    if given is None:
        return
    if machine.kind == "cpu" and given.get("cpu_offload"):
        given["cpu_offload"] = CPUOffloadPolicy(pin_memory=False)  # memory is pinned for a GPU, and there is none
    if precision is not Precision.FP32:
        # accelerate's own policy would round the loss to 16 bits, and add up the ranks' gradients in them.
        compute = torch.bfloat16 if precision is Precision.BF16 else torch.float16
        given["mixed_precision_policy"] = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32)


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
    held = [_local(parameter) for parameter in parameters]
    whole = [int(getattr(parameter, "ds_numel", parameter.numel())) for parameter in parameters]
    trainable = sum(size for parameter, size in zip(parameters, whole, strict=True) if parameter.requires_grad)
    trained_here = sum(
        part.numel() for parameter, part in zip(parameters, held, strict=True) if parameter.requires_grad
    )
    stage = engine.zero_optimization_stage() if hasattr(engine, "zero_optimization_stage") else None
    return {
        "engine": type(model).__name__,
        "stage": stage,
        "world_size": world,
        "parameter_shard": sum(tensor.numel() for tensor in held),
        "parameters": sum(whole),
        "optimizer_shard": _optimizer_elements(model, trainable) if stage else trained_here,
        "optimized": trainable,
    }


def _local(parameter: torch.nn.Parameter) -> torch.Tensor:
    """The part of a parameter that this rank holds: of ZeRO-3's, of FSDP's, or all of it."""
    if isinstance(parameter, DTensor):
        return parameter.to_local()
    part: torch.Tensor = getattr(parameter, "ds_tensor", parameter)
    return part


def _optimizer_elements(engine: Any, trainable: int) -> int:
    """Elements of the fp32 partitions that ZeRO's optimizer keeps on this rank."""
    optimizer = engine.optimizer
    for name in ("single_partition_of_fp32_groups", "fp32_partitioned_groups_flat"):
        if hasattr(optimizer, name):
            return sum(int(group.numel()) for group in getattr(optimizer, name))
    return trainable
