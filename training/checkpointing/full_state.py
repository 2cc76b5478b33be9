"""Reads the trained weights and the optimizer state of a checkpoint by parameter, however its files divide them."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

from training.checkpointing.contents import optimizer_files
from training.config.choices import Strategy
from training.run_folder.checkpoint_layout import Layout

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class FullState:
    """The weights of the trained parameters by name, and the optimizer state of each: tensors of its shape, and scalars."""

    weights: Tensors
    optimizer: dict[str, Tensors]


def read_full_state(checkpoint: Path, layout: Layout) -> FullState:
    """Reads a checkpoint of any layout into host memory (files of torch.save are mapped, not loaded).

    Raises:
        KeyError: a parameter is missing in the files.
    """
    if layout.strategy.zero_stage:
        return _of_zero(checkpoint, layout)
    if layout.strategy is Strategy.FSDP:
        return _of_fsdp(checkpoint, layout)
    return _of_copies(checkpoint, layout)


def read_weights(checkpoint: Path, layout: Layout) -> Tensors:
    """Reads the trained weights of a checkpoint of one device or DDP by parameter.

    Raises:
        KeyError: a parameter is missing in the files.
    """
    saved: Tensors = {}
    for file in checkpoint.glob("*.safetensors"):
        saved |= load_file(file)
    return _named(saved, layout)


def _of_copies(checkpoint: Path, layout: Layout) -> FullState:
    state = torch.load(checkpoint / "optimizer.pt", map_location="cpu", weights_only=True, mmap=True)["state"]
    by_name = {name: state[index] for index, name in enumerate(layout.parameters) if index in state}
    return FullState(read_weights(checkpoint, layout), by_name)


def _of_fsdp(checkpoint: Path, layout: Layout) -> FullState:
    weights = read_shards(checkpoint / "pytorch_model_fsdp_0")["model"]
    state = read_shards(checkpoint / "optimizer_0")["optimizer"]["state"]
    return FullState(_named(weights, layout), _named(state, layout))


def read_shards(folder: Path) -> dict[str, Any]:
    """Reads a folder of torch.distributed.checkpoint into whole tensors."""
    state: dict[str, Any] = {}
    planner = _EmptyStateDictLoadPlanner()  # type: ignore[no-untyped-call]
    _load_state_dict(state, FileSystemReader(folder), planner=planner, no_dist=True)
    return state


def _of_zero(checkpoint: Path, layout: Layout) -> FullState:
    """Joins the ranks' flat partitions, as DeepSpeed's zero_to_fp32.py does for the weights."""
    (folder,) = checkpoint.glob("global_step*")
    # Pickles with DeepSpeed's classes; only checkpoints that this run wrote are read.
    ranks = [
        torch.load(file, map_location="cpu", weights_only=False, mmap=True)["optimizer_state_dict"]
        for file in optimizer_files(folder, layout)
    ]
    if layout.strategy is Strategy.ZERO3:
        return _of_zero_3(ranks, layout)
    split = _Split(layout)
    for group, _ in enumerate(ranks[0]["single_partition_of_fp32_groups"]):
        states = [rank["base_optimizer_state"]["state"].get(group, {}) for rank in ranks]
        split.add(
            torch.cat([rank["single_partition_of_fp32_groups"][group] for rank in ranks]),
            {name: _joined([state[name] for state in states]) for name in states[0]},
        )
    return split.full


def _joined(parts: list[Any]) -> torch.Tensor:
    if not torch.is_tensor(parts[0]) or parts[0].dim() == 0:
        return torch.as_tensor(parts[0], dtype=torch.float32)
    return torch.cat([part.flatten() for part in parts])


class _Split:
    """Splits flat groups of parameters, one group after another, into the parameters of a layout."""

    def __init__(self, layout: Layout) -> None:
        self.full = FullState({}, {})
        self._rest = list(zip(layout.parameters, layout.shapes, strict=True))

    def add(self, weights: torch.Tensor, states: Tensors) -> None:
        at = 0
        while self._rest and at + math.prod(self._rest[0][1]) <= weights.numel():
            name, shape = self._rest.pop(0)
            size = math.prod(shape)
            self.full.weights[name] = weights[at : at + size].view(shape)
            self.full.optimizer[name] = {
                key: state if state.dim() == 0 else state[at : at + size].view(shape) for key, state in states.items()
            }
            at += size


def _of_zero_3(ranks: list[dict[str, Any]], layout: Layout) -> FullState:
    """Each parameter is divided by itself: every rank has an equal part, the last ones padded."""
    full = FullState({}, {})
    rest = list(zip(layout.parameters, layout.shapes, strict=True))
    for group, flat in enumerate(ranks[0]["fp32_flat_groups"]):
        states = [rank["optimizer_state_dict"]["state"].get(group, {}) for rank in ranks]
        at = 0
        while rest and at < flat.numel():
            name, shape = rest.pop(0)
            part = math.ceil(math.prod(shape) / len(ranks))
            full.weights[name] = _from_parts((rank["fp32_flat_groups"][group] for rank in ranks), at, part, shape)
            full.optimizer[name] = {
                key: _joined([value])
                if not torch.is_tensor(value) or value.dim() == 0
                else _from_parts((state[key] for state in states), at, part, shape)
                for key, value in states[0].items()
            }
            at += part
    return full


def _from_parts(flats: Iterable[torch.Tensor], at: int, part: int, shape: list[int]) -> torch.Tensor:
    return torch.cat([flat.flatten()[at : at + part] for flat in flats])[: math.prod(shape)].view(shape)


def _named(saved: dict[str, Any], layout: Layout) -> dict[str, Any]:
    """The entries by parameter name."""
    return {name: saved[name] if name in saved else saved[other] for name, other in layout.names_in_files.items()}
