"""The part of each trained parameter, and of its optimizer state, that this rank holds."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from training.checkpointing.host_copies import plain_tensors

WEIGHT = "weight"
_WRAPPERS = ("_checkpoint_wrapped_module.", "_orig_mod.", "_fsdp_wrapped_module.")


class Part(NamedTuple):
    """Consecutive elements, from `first` on, of the flattened parameter `name` (`kind` WEIGHT), or of a state of it."""

    name: str
    kind: str
    first: int
    values: torch.Tensor


def names_of(model: torch.nn.Module) -> dict[int, str]:
    """The names of a model's parameters by their id, without those of wrappers.

    FSDP divides the parameters again: a pass without backward leaves whole ones, which no optimizer has.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
    return {id(parameter): plain_name(name) for name, parameter in model.named_parameters()}


def plain_name(name: str) -> str:
    """The name without those of wrappers."""
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def full_shape(parameter: torch.Tensor) -> list[int]:
    """The shape of a parameter, also if it is divided."""
    return list(getattr(parameter, "ds_shape", parameter.shape))


def parts(model: torch.nn.Module, optimizer: Any) -> Iterator[Part]:
    """Yields the parts on this rank. `model` is unwrapped. A state of another shape belongs to a parameter's first part."""
    names, zero = names_of(model), getattr(optimizer, "optimizer", optimizer)
    if hasattr(zero, "fp32_partitioned_groups_flat"):
        yield from _of_zero_3(zero, names)
    elif hasattr(zero, "round_robin_bit16_groups"):
        ranks = [dist.get_rank(group=group) for group in zero.real_dp_process_group]
        flats = zero.single_partition_of_fp32_groups
        yield from _of_flats(zero, names, zero.round_robin_bit16_groups, flats, ranks)
    elif hasattr(zero, "fp32_groups_flat_partition"):  # stage 1 in bf16
        ranks = [dist.get_rank(group=group) for group in zero.real_dp_process_group]
        yield from _of_flats(zero, names, zero.bf16_groups, zero.fp32_groups_flat_partition, ranks)
    elif hasattr(zero, "fp32_groups_flat"):  # stage 0 in 16 bits: every rank has whole copies in fp32
        yield from _of_flats(zero, names, zero.fp16_groups, zero.fp32_groups_flat, [0] * len(zero.fp16_groups))
    elif hasattr(zero, "fp32_groups"):  # the same, for an optimizer that is not fused
        yield from _of_copies(zero, names)
    else:
        yield from _of_parameters(zero, names)


def _of_parameters(optimizer: Any, names: dict[int, str]) -> Iterator[Part]:
    """One device, DDP, or FSDP2, whose parameters are DTensors."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            name, first, local = names[id(parameter)], _first_element(parameter), _local(parameter.detach())
            if local.numel():
                yield from _with_states(name, first, local, optimizer.state.get(parameter, {}))


def _with_states(name: str, first: int, local: torch.Tensor, states: dict[str, Any]) -> Iterator[Part]:
    yield Part(name, WEIGHT, first, local.flatten())
    for key, state in states.items():
        if torch.is_tensor(state) and state.dim() > 0:
            for tensor in plain_tensors(_local(state.detach())):
                yield Part(name, key, first if tensor.numel() == local.numel() else 0, tensor.flatten())
        elif first == 0 and state is not None:  # a number of steps is the same on all ranks
            yield Part(name, key, 0, torch.tensor([float(state)], dtype=torch.float64))


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _first_element(parameter: torch.Tensor) -> int:
    """The place of this rank's first element. FSDP2 divides the first dimension."""
    if not isinstance(parameter, DTensor):
        return 0
    _, offset = compute_local_shape_and_global_offset(parameter.shape, parameter.device_mesh, parameter.placements)
    return int(sum(at * step for at, step in zip(offset, parameter.stride(), strict=True)))


def _of_flats(
    zero: Any, names: dict[int, str], groups: list[Any], flats: list[torch.Tensor], ranks: Iterable[int]
) -> Iterator[Part]:
    """Each group of parameters is one flat tensor, of which a rank holds an equal part."""
    for parameters, flat, rank in zip(groups, flats, ranks, strict=True):
        start, at = rank * flat.numel(), 0
        for parameter in parameters:
            low, high = max(at, start), min(at + parameter.numel(), start + flat.numel())
            if low < high:
                own = slice(low - start, high - start)
                yield from _sliced(
                    names[id(parameter)], low - at, own, flat.detach(), zero.optimizer.state.get(flat, {})
                )
            at += parameter.numel()


def _of_copies(zero: Any, names: dict[int, str]) -> Iterator[Part]:
    """Each parameter has a copy in fp32 of its own."""
    for parameters, copies in zip(zero.fp16_groups, zero.fp32_groups, strict=True):
        for parameter, copy in zip(parameters, copies, strict=True):
            yield from _with_states(names[id(parameter)], 0, copy.detach(), zero.optimizer.state.get(copy, {}))


def _of_zero_3(zero: Any, names: dict[int, str]) -> Iterator[Part]:
    """Each parameter is divided by itself into equal parts, the last ones padded."""
    rank = dist.get_rank(group=zero.dp_process_group)
    for parameters, flat in zip(zero.fp16_groups, zero.fp32_partitioned_groups_flat, strict=True):
        at = 0
        for parameter in parameters:
            part = parameter.partition_numel()
            size = min(part, parameter.ds_numel - rank * part)
            if size > 0:
                states = zero.optimizer.state.get(flat, {})
                yield from _sliced(names[id(parameter)], rank * part, slice(at, at + size), flat.detach(), states)
            at += part


def _sliced(name: str, first: int, own: slice, flat: torch.Tensor, states: dict[str, Any]) -> Iterator[Part]:
    divided = {
        key: state.flatten()[own] if torch.is_tensor(state) and state.numel() == flat.numel() else state
        for key, state in states.items()
    }
    yield from _with_states(name, first, flat[own], divided)
