"""Resumes from a checkpoint that another strategy or number of processes wrote."""

from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor, distribute_tensor

from training.checkpointing.full_state import FullState, Tensors, read_full_state
from training.checkpointing.parts import full_shape, names_of
from training.run_folder.checkpoint_layout import Layout


def trained_parameters(model: torch.nn.Module, optimizer: Any) -> tuple[list[str], list[list[int]]]:
    """The names and shapes of the trained parameters of an unwrapped model, in the order of the optimizer's state."""
    names = names_of(model)
    parameters = [parameter for group in _groups(optimizer) for parameter in group]
    return [names[id(parameter)] for parameter in parameters], [full_shape(parameter) for parameter in parameters]


def _groups(optimizer: Any) -> list[list[torch.nn.Parameter]]:
    """The model's own parameters by group, also if DeepSpeed's optimizer has replaced them by flat tensors."""
    zero = getattr(optimizer, "optimizer", optimizer)
    for name in ("round_robin_bit16_groups", "fp16_groups"):  # of ZeRO 1 and 2, of ZeRO-3
        if hasattr(zero, name):
            return [list(group) for group in getattr(zero, name)]
    return [group["params"] for group in optimizer.param_groups]


def restore(checkpoint: Path, layout: Layout, model: torch.nn.Module, optimizer: Any) -> None:
    """Sets weights and optimizer state from a checkpoint of any layout. `model` is unwrapped. Every rank calls it."""
    state, names = read_full_state(checkpoint, layout), names_of(model)
    zero = getattr(optimizer, "optimizer", optimizer)
    with torch.no_grad():
        if hasattr(zero, "fp16_groups"):
            _restore_zero_3(zero, names, state)
        elif hasattr(zero, "round_robin_bit16_groups"):
            _restore_zero_1_and_2(zero, names, state)
        else:
            _restore_parameters(zero, names, state)


def _restore_parameters(optimizer: Any, names: dict[int, str], state: FullState) -> None:
    """One device, DDP, or FSDP2, whose parameters are DTensors."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            name = names[id(parameter)]
            _like(parameter, state.weights[name], parameter.dtype, into=parameter)
            optimizer.state[parameter] = {
                key: _like(parameter, value) if value.dim() else torch.tensor(float(value))
                for key, value in state.optimizer.get(name, {}).items()
            }


def _like(
    parameter: torch.Tensor, value: torch.Tensor, dtype: torch.dtype | None = None, into: torch.Tensor | None = None
) -> torch.Tensor:
    """Returns `value` on the parameter's device and divided as it is; with `into`, copies it there."""
    value = value.to(parameter.device, dtype or value.dtype, copy=True)
    if isinstance(parameter, DTensor):
        value = distribute_tensor(value, parameter.device_mesh, parameter.placements)
    return value if into is None else into.copy_(value)


def _restore_zero_1_and_2(zero: Any, names: dict[int, str], state: FullState) -> None:
    """Fills this rank's partition of each flat group, and all weights."""
    for group, parameters in enumerate(zero.round_robin_bit16_groups):
        own = zero.single_partition_of_fp32_groups[group]
        rank = torch.distributed.get_rank(group=zero.real_dp_process_group[group])
        found = [names[id(parameter)] for parameter in parameters]
        own.data.copy_(_partition([state.weights[name] for name in found], own.numel(), rank))
        _fill(zero.optimizer.state[own], [state.optimizer[name] for name in found], own.numel(), rank)
        for parameter, name in zip(parameters, found, strict=True):
            parameter.data.copy_(state.weights[name])


def _partition(values: list[torch.Tensor], size: int, rank: int) -> torch.Tensor:
    """A rank's part of the values' elements, one after another, padded with zeros to `size`."""
    flat = torch.cat([value.flatten() for value in values])[rank * size : (rank + 1) * size]
    return torch.nn.functional.pad(flat, (0, size - flat.numel()))


def _fill(own: dict[str, Any], states: list[Tensors], size: int, rank: int) -> None:
    for key, value in states[0].items():
        if value.dim() == 0:
            own[key] = torch.tensor(float(value)) if torch.is_tensor(own.get(key, value)) else int(value)
        else:
            part = _partition([state[key] for state in states], size, rank)
            own[key] = own[key].copy_(part) if key in own else part


def _restore_zero_3(zero: Any, names: dict[int, str], state: FullState) -> None:
    """Fills this rank's part of each parameter; DeepSpeed then updates the weights from it."""
    rank = torch.distributed.get_rank(group=zero.dp_process_group)
    for group, parameters in enumerate(zero.fp16_groups):
        flat = zero.fp32_partitioned_groups_flat[group]
        own, at = zero.optimizer.state[flat], 0
        for parameter in parameters:
            name, part = names[id(parameter)], parameter.partition_numel()
            flat.data[at : at + part].copy_(_partition([state.weights[name]], part, rank))
            for key, value in state.optimizer[name].items():
                if value.dim() == 0:
                    own[key] = torch.tensor(float(value)) if torch.is_tensor(own.get(key, value)) else int(value)
                else:
                    own.setdefault(key, torch.zeros_like(flat))[at : at + part].copy_(_partition([value], part, rank))
            at += part
    zero.load_state_dict({rank: zero.state_dict()})
