"""Finds the devices of a run, joins its ranks, coordinates them, and describes how each holds its part of the model."""

import math
import os
import re
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import PartialState
from accelerate.utils import DistributedType
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grad_norm_
from transformers import TrainingArguments

from training.config.choices import Precision, Strategy
from training.config.machine import Machine
from training.config.run_config import RunConfig
from training.errors import UserError
from training.ranks.deepspeed_operators import check_nvme, reuse_operators
from training.reports.report import Report
from training.run_folder.paths import LEASED_GPUS_VARIABLE

_NO_LIMIT = timedelta(days=30)
_OF_A_RANK = re.compile(r"(ACCELERATE|FSDP|TORCHELASTIC)_.*|MASTER_(ADDR|PORT)|([A-Z]+_)?(RANK|WORLD_SIZE)")


def local_machine() -> Machine:
    """Returns this machine's devices, as torch reports them, and the number of machines that torchrun connects. Raises UserError
    if torch does not see the GPUs that the run leased."""
    check_leased_gpus()
    machines = int(os.environ.get("GROUP_WORLD_SIZE", "1"))
    if not torch.cuda.is_available():
        return Machine(most_machines=machines)
    count = torch.cuda.device_count()
    names = [torch.cuda.get_device_name(index) for index in range(count)]
    memory = [torch.cuda.get_device_properties(index).total_memory for index in range(count)]
    bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    return Machine("cuda", count, names, memory, bf16, most_machines=machines)


def forget_ranks() -> None:
    """Makes this process the only one of its program: no library waits for other ranks then. Before `start`."""
    for name in filter(_OF_A_RANK.fullmatch, list(os.environ)):
        del os.environ[name]


def start(config: RunConfig, machine: Machine, report: Report) -> PartialState:
    """Joins the ranks.

    On CPU the state is set up by hand: accelerate would silently disable DeepSpeed or give each rank a world of size 1.
    `describe` reports what really runs.
    """
    if machine.most_machines == 1:
        _connect_over_loopback()
    if config.strategy.zero_stage is not None:
        reuse_operators(report)
        check_nvme(config)
        _begin_at_step_one()
    if machine.kind == "cuda":
        _record_collectives(report.run_dir)
        return PartialState()
    state = PartialState(cpu=True)
    if config.strategy is Strategy.FSDP:
        state.distributed_type = DistributedType.MULTI_GPU  # accelerate enables FSDP only for this type
    if config.strategy.zero_stage is not None:
        import deepspeed

        # Before the model is loaded: ZeRO-3 shards weights while they are read, and needs the world size for it.
        deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)
        state.distributed_type = DistributedType.DEEPSPEED
    return state


def _begin_at_step_one() -> None:
    """Keeps DeepSpeed from a step with zero gradients before training, which it takes with stage 0 in 16 bits.

    The step creates the optimizer's state, but also decays the weights, and makes Adam correct its means as if they were those of
    one step more: the first update would be too small by a quarter.
    """
    from deepspeed.runtime.fp16.fused_optimizer import FP16_Optimizer
    from deepspeed.runtime.fp16.unfused_optimizer import FP16_UnfusedOptimizer

    for optimizer in (FP16_Optimizer, FP16_UnfusedOptimizer):
        optimizer.initialize_optimizer_states = lambda _: None


def _connect_over_loopback() -> None:
    """Lets gloo and NCCL listen where no other machine can reach them; by default they choose another interface."""
    if "lo" in (name for _, name in socket.if_nameindex()):
        for library in ("GLOO", "NCCL"):
            os.environ.setdefault(f"{library}_SOCKET_IFNAME", "lo")


def _record_collectives(run_dir: Path) -> None:
    """After a timeout each rank writes its latest NCCL collectives to the run's folder (torch's flight recorder)."""
    os.environ.setdefault("TORCH_NCCL_TRACE_BUFFER_SIZE", "2000")
    os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")
    os.environ.setdefault("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", str(run_dir / "nccl_trace_rank_"))


def several_ranks() -> bool:
    """True if this process has a process group with others."""
    return dist.is_initialized() and dist.get_world_size() > 1


def reduce_over_ranks(tensor: torch.Tensor, operation: Any = dist.ReduceOp.SUM) -> torch.Tensor:
    """Reduces a tensor in place over all ranks, if there are several; returns it. A collective."""
    if several_ranks():
        dist.all_reduce(tensor, operation)
    return tensor


def gathered(value: Any) -> list[Any]:
    """The values of all ranks, in their order. A collective."""
    values = [value]
    if several_ranks():
        values = [None] * dist.get_world_size()
        dist.all_gather_object(values, value)
    return values


def barrier() -> None:
    """Waits for all ranks, if there are several. A collective."""
    if several_ranks():
        dist.barrier()


@contextmanager
def main_rank_works(name: str) -> Iterator[bool]:
    """A context for long work of rank 0; yields True on rank 0. The other ranks wait for it when they leave the context.

    They wait at the process group's store without a time limit. NCCL would end a collective after ten minutes, and with it the
    run, while rank 0 hashes a checkpoint of hundreds of gigabytes. Each `name` may be used once per run.
    """
    if not several_ranks():
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
    """Sets the FSDP settings that are torch objects; does nothing with another strategy."""
    plugin = arguments.fsdp_plugin_args
    if plugin is None:
        return
    if machine.kind == "cpu" and plugin.get("cpu_offload"):
        plugin["cpu_offload"] = CPUOffloadPolicy(pin_memory=False)  # pinned memory needs a GPU
    if precision is not Precision.FP32:
        # accelerate's own policy would round the loss to 16 bits and sum the ranks' gradients in 16 bits.
        compute = torch.bfloat16 if precision is Precision.BF16 else torch.float16
        plugin["mixed_precision_policy"] = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32)


def destroy_process_group() -> None:
    """Destroys the process group; afterwards rank 0 works alone, and loads models without ZeRO."""
    from transformers.integrations.deepspeed import unset_hf_deepspeed_config

    unset_hf_deepspeed_config()
    if dist.is_initialized():
        dist.destroy_process_group()


def describe(model: torch.nn.Module) -> dict[str, Any]:
    """Describes how the wrapped model really runs: its engine's class, ZeRO stage, world size, and this rank's elements.

    `parameter_shard` counts the parameter elements on this rank, of `parameters` in total; `optimizer_shard` the elements
    whose optimizer state this rank keeps, of `optimized` in total.
    """
    engine: Any = model
    parameters = list(model.parameters())
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    stage = engine.zero_optimization_stage() if hasattr(engine, "zero_optimization_stage") else None
    partitions = ("single_partition_of_fp32_groups", "fp32_partitioned_groups_flat") if stage else ()
    divided = next((groups for name in partitions if (groups := getattr(engine.optimizer, name, None))), None)
    optimized = _elements(trained)
    here = optimized if stage else sum(local_part(parameter).numel() for parameter in trained)
    return {
        "engine": type(model).__name__,
        "stage": stage,
        "world_size": int(os.environ.get("WORLD_SIZE", "1")),
        "parameter_shard": sum(local_part(parameter).numel() for parameter in parameters),
        "parameters": _elements(parameters),
        "optimizer_shard": sum(int(group.numel()) for group in divided) if divided else here,
        "optimized": optimized,
    }


def _elements(parameters: Iterable[torch.nn.Parameter]) -> int:
    """The elements of parameters on all ranks together."""
    return sum(int(getattr(parameter, "ds_numel", parameter.numel())) for parameter in parameters)


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the part of a tensor on this rank: a shard of ZeRO-3 or FSDP, or all of it."""
    if isinstance(tensor, DTensor):
        return tensor.to_local()
    shard: torch.Tensor = getattr(tensor, "ds_tensor", tensor)
    return shard


def keep_gradient_norm(model: torch.nn.Module) -> None:
    """Makes a DeepSpeed engine without ZeRO keep the gradient norm in fp32, which it computes only for clipping."""
    engine: Any = model
    if not hasattr(engine, "clip_fp32_gradients") or hasattr(engine.optimizer, "_global_grad_norm"):
        return
    largest = engine.gradient_clipping() or math.inf

    def clip() -> None:
        engine._global_grad_norm = float(clip_grad_norm_(engine.module.parameters(), largest))

    engine.gradient_clipping, engine.clip_fp32_gradients = lambda: largest, clip


def compute_device() -> torch.device:
    """The kind of device to compute on. Raises UserError as `check_leased_gpus`."""
    check_leased_gpus()
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def check_leased_gpus() -> None:
    """Refuses to compute on the CPU without a word while the leased GPUs stay idle. Raises UserError if torch sees fewer GPUs
    than were leased; with the reason that CUDA gives."""
    leased = int(os.environ.get(LEASED_GPUS_VARIABLE) or 0)
    seen = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if seen < leased:
        message = f"torch {torch.__version__} sees {seen} of {leased} leased GPUs: {_why_no_cuda()}"
        fix = "Check nvidia-smi, the driver's version, and that the container gets the GPUs; then resume the run."
        raise UserError("devices", os.environ.get("CUDA_VISIBLE_DEVICES"), message, fix)


def _why_no_cuda() -> str:
    if torch.version.cuda is None and torch.version.hip is None:
        return "this torch was built without CUDA; install one with CUDA."
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:
        return f"{str(error).strip().splitlines()[0].rstrip('.')}."
    return "the others are missing."
