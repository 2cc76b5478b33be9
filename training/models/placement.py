"""Where the weights of a model are read to, so that the ranks of a machine do not each take host memory for all of them.

Models that train whole on a GPU are read onto it. For FSDP one rank reads the weights; accelerate sends each rank its shard when it
divides the model. ZeRO-3 does so by itself (transformers' `_load_state_dict_into_zero3_model`).
"""

import os
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from accelerate.utils import broadcast_object_list
from transformers import PreTrainedModel, TrainingArguments

from training.config.run_config import RunConfig
from training.config.sharding import loads_on_devices, loads_on_one_rank

DeviceMap = dict[str, Any] | None
"""transformers' `device_map`; None reads into host memory."""
NO_VALUES: DeviceMap = {"": "meta"}
"""For tensors that have shapes only."""


def read(config: RunConfig, read_onto: Callable[[DeviceMap], PreTrainedModel], *, trains: bool) -> PreTrainedModel:
    """Reads a model by `read_onto`; every rank calls it. One that does not train, such as a reference model, is read by each rank
    into host memory."""
    if trains and loads_on_one_rank(config) and dist.is_initialized():
        return _on_one_rank(read_onto)
    gpu = own_gpu() if trains and loads_on_devices(config) else None
    return read_onto(None if gpu is None else {"": gpu})


def own_gpu() -> int | None:
    """The number of this rank's GPU; None without one."""
    return torch.cuda.current_device() if torch.cuda.is_available() else None


def _on_one_rank(read_onto: Callable[[DeviceMap], PreTrainedModel]) -> PreTrainedModel:
    """Reads the weights on one rank of each machine; the others get weights without values.

    Afterwards all have the random state of the first rank, which alone initializes weights that are in no file.
    """
    first, before = int(os.environ.get("LOCAL_RANK", "0")) == 0, torch.get_rng_state()
    # Only with these variables transformers gives the other ranks the buffers that no file has.
    with patch.dict(os.environ, {"ACCELERATE_USE_FSDP": "true", "FSDP_CPU_RAM_EFFICIENT_LOADING": "true"}):
        model = read_onto(None if first else NO_VALUES)
    if has_saved_buffers(model):
        if first:
            return model
        torch.set_rng_state(before)
        return read_onto(None)
    state = [torch.get_rng_state()]
    broadcast_object_list(state)
    torch.set_rng_state(state[0])
    return model


def has_saved_buffers(model: torch.nn.Module) -> bool:
    """True if a model's files have buffers, such as a router's biases: accelerate sends no buffers from rank to rank."""
    saved = model.state_dict().keys()
    return any(name in saved for name, _ in model.named_buffers())


def divide(arguments: TrainingArguments, model: torch.nn.Module) -> None:
    """Sets where accelerate takes the weights of a loaded model from that FSDP divides: from each rank if all have them."""
    plugin = arguments.fsdp_plugin_args
    if plugin and has_saved_buffers(model):
        plugin["cpu_ram_efficient_loading"] = False


def reserve(model: torch.nn.Module) -> None:
    """Replaces weights without values by tensors that are not written: the system gives them no memory.

    accelerate tells parameters apart by their addresses, and those on meta have none.
    """
    reserved: dict[torch.nn.Parameter, torch.nn.Parameter] = {}  # tied weights stay tied
    for module in model.modules():
        for name, weight in module._parameters.items():
            if weight is not None and weight.is_meta:
                if weight not in reserved:
                    empty = torch.empty_like(weight, device="cpu")
                    reserved[weight] = torch.nn.Parameter(empty, requires_grad=weight.requires_grad)
                module._parameters[name] = reserved[weight]
