"""Resumes from a checkpoint that another strategy or number of processes wrote."""

import math
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
from torch.distributed.tensor import DTensor, distribute_tensor

from training.checkpointing.contents import optimizer_files
from training.checkpointing.digest import FlatPart, flat_parts_of, full_shape, names_of
from training.config.choices import Strategy
from training.run_folder.checkpoint_layout import CheckpointLayout

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class FullState:
    """The weights of the trained parameters by name, and the optimizer state of each: tensors of its shape, and scalars."""

    weights: Tensors
    optimizer: dict[str, Tensors]


def read_full_state(checkpoint: Path, layout: CheckpointLayout) -> FullState:
    """Reads a checkpoint of any layout into host memory (files of torch.save are mapped, not loaded). Raises KeyError if a
    parameter is missing in the files."""
    if layout.strategy.zero_stage:
        return _of_zero(checkpoint, layout)
    if layout.strategy is Strategy.FSDP:
        weights = read_shards(checkpoint / "pytorch_model_fsdp_0")["model"]
        state = read_shards(checkpoint / "optimizer_0")["optimizer"]["state"]
        return FullState(_named(weights, layout), _named(state, layout))
    state = torch.load(checkpoint / "optimizer.pt", map_location="cpu", weights_only=True, mmap=True)["state"]
    by_name = {name: state[index] for index, name in enumerate(layout.parameters) if index in state}
    return FullState(read_weights(checkpoint, layout), by_name)


def read_weights(checkpoint: Path, layout: CheckpointLayout) -> Tensors:
    """Reads the trained weights of a checkpoint of one device or DDP by parameter. Raises KeyError if a parameter is missing in
    the files."""
    saved: Tensors = {}
    for file in checkpoint.glob("*.safetensors"):
        saved |= load_file(file)
    return _named(saved, layout)


def read_shards(folder: Path) -> dict[str, Any]:
    """Reads a folder of torch.distributed.checkpoint into whole tensors."""
    state: dict[str, Any] = {}
    planner = _EmptyStateDictLoadPlanner()  # type: ignore[no-untyped-call]
    _load_state_dict(state, FileSystemReader(folder), planner=planner, no_dist=True)
    return state


def _of_zero(checkpoint: Path, layout: CheckpointLayout) -> FullState:
    """Joins the ranks' flat partitions, as DeepSpeed's zero_to_fp32.py does for the weights.

    ZeRO 1 and 2 divide a group of parameters as a whole; ZeRO-3 divides each parameter by itself, the last parts padded.
    """
    (folder,) = checkpoint.glob("global_step*")
    # Pickles with DeepSpeed's classes; only checkpoints that this run wrote are read.
    ranks = [
        torch.load(file, map_location="cpu", weights_only=False, mmap=True)["optimizer_state_dict"]
        for file in optimizer_files(folder, layout)
    ]
    by_parameter = layout.strategy is Strategy.ZERO3
    flats_key = "fp32_flat_groups" if by_parameter else "single_partition_of_fp32_groups"
    states_key = "optimizer_state_dict" if by_parameter else "base_optimizer_state"
    full, rest = FullState({}, {}), deque(zip(layout.parameters, layout.shapes, strict=True))
    for group in range(len(ranks[0][flats_key])):
        flats = [rank[flats_key][group].flatten() for rank in ranks]
        states = [rank[states_key]["state"].get(group, {}) for rank in ranks]
        parts = {name: _parts([state[name] for state in states]) for name in states[0]}
        if not by_parameter:
            flats, parts = [torch.cat(flats)], {name: [_whole(part)] for name, part in parts.items()}
        at = 0
        while rest and at + (size := math.ceil(math.prod(rest[0][1]) / len(flats))) <= flats[0].numel():
            name, shape = rest.popleft()
            cut = slice(at, at + size)
            full.weights[name] = _parameter(flats, cut, shape)
            full.optimizer[name] = {key: _parameter(part, cut, shape) for key, part in parts.items()}
            at += size
    return full


def _parts(values: list[Any]) -> list[torch.Tensor]:
    """The ranks' parts of a state, flat; one scalar if it is the same for all elements."""
    if not torch.is_tensor(values[0]) or values[0].dim() == 0:
        return [torch.as_tensor(values[0], dtype=torch.float32)]
    return [value.flatten() for value in values]


def _whole(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _parameter(parts: list[torch.Tensor], cut: slice, shape: list[int]) -> torch.Tensor:
    """A parameter's values, of which each part has those at `cut`; a scalar as it is."""
    if parts[0].dim() == 0:
        return parts[0]
    return _whole([part[cut] for part in parts])[: math.prod(shape)].view(shape)


def _named(saved: dict[str, Any], layout: CheckpointLayout) -> dict[str, Any]:
    return {name: saved[name] if name in saved else saved[other] for name, other in layout.names_in_files.items()}


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


def restore(checkpoint: Path, layout: CheckpointLayout, model: torch.nn.Module, optimizer: Any) -> None:
    """Sets weights and optimizer state from a checkpoint of any layout. `model` is unwrapped. Every rank calls it."""
    state, names = read_full_state(checkpoint, layout), names_of(model)
    zero = getattr(optimizer, "optimizer", optimizer)
    with torch.no_grad():
        if (flat_parts := flat_parts_of(zero, names)) is None:
            _restore_parameters(zero, names, state)
            return
        for part in flat_parts:
            _fill(zero, part, state)
        if hasattr(zero, "fp32_partitioned_groups_flat"):  # ZeRO-3 updates the weights itself
            zero.load_state_dict({torch.distributed.get_rank(group=zero.dp_process_group): zero.state_dict()})
            return
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data.copy_(state.weights[names[id(parameter)]])


def _restore_parameters(optimizer: Any, names: dict[int, str], state: FullState) -> None:
    """One device, DDP, or FSDP2, whose parameters are DTensors."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            name = names[id(parameter)]
            parameter.copy_(_like(parameter, state.weights[name].to(parameter.dtype)))
            optimizer.state[parameter] = {
                key: _like(parameter, value) if value.dim() else torch.tensor(float(value))
                for key, value in state.optimizer.get(name, {}).items()
            }


def _like(parameter: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """A copy of `value` on the parameter's device, divided as it is."""
    value = value.to(parameter.device, copy=True)
    if isinstance(parameter, DTensor):
        value = distribute_tensor(value, parameter.device_mesh, parameter.placements)
    return value


def _fill(zero: Any, part: FlatPart, state: FullState) -> None:
    """Sets a part of a rank's flat tensor, and of its optimizer state."""
    own, elements = zero.optimizer.state[part.flat], slice(part.first, part.first + part.own.stop - part.own.start)
    part.flat.data[part.own].copy_(state.weights[part.name].flatten()[elements])
    for key, value in state.optimizer[part.name].items():
        if value.dim() == 0:
            own[key] = torch.tensor(float(value)) if torch.is_tensor(own.get(key, value)) else int(value)
        else:
            own.setdefault(key, torch.zeros_like(part.flat))[part.own].copy_(value.flatten()[elements])
