"""A digest of what a run trains: counts, finiteness and hashes of each parameter and its optimizer state, however they are divided.

A checkpoint keeps it. After a resume the digest must be the same, or something was not saved or not loaded.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from training.checkpointing.deferred_writes import plain_tensors
from training.ranks.distributed import local_part, reduce_over_ranks

WEIGHT = "weight"
_WRAPPERS = ("_checkpoint_wrapped_module.", "_orig_mod.", "_fsdp_wrapped_module.")
_FILE = "digest.json"
_CHUNK = 2**20  # elements that are hashed at once
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_ELEMENTS, _BYTES, _WEIGHT_NOT_FINITE, _STATE_NOT_FINITE, _WEIGHT, _STATE = range(6)


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
    if (flat_parts := flat_parts_of(zero, names)) is not None:
        for name, first, own, flat in flat_parts:
            states = {
                key: state.flatten()[own] if torch.is_tensor(state) and state.numel() == flat.numel() else state
                for key, state in zero.optimizer.state.get(flat, {}).items()
            }
            yield from _with_states(name, first, flat.detach()[own], states)
    elif hasattr(zero, "fp32_groups"):  # stage 0 in 16 bits, not fused: each parameter has a copy in fp32
        for parameter, copy in zip(chain(*zero.fp16_groups), chain(*zero.fp32_groups), strict=True):
            yield from _with_states(names[id(parameter)], 0, copy.detach(), zero.optimizer.state.get(copy, {}))
    else:
        yield from _of_parameters(zero, names)


class FlatPart(NamedTuple):
    """Consecutive elements, from `first` on, of the flattened parameter `name`: the elements `own` of a flat tensor."""

    name: str
    first: int
    own: slice
    flat: torch.Tensor


def flat_parts_of(zero: Any, names: dict[int, str]) -> Iterator[FlatPart] | None:
    """This rank's parts in the flat tensors of one of DeepSpeed's optimizers; None for another optimizer."""
    if hasattr(zero, "fp32_partitioned_groups_flat"):
        return _of_zero_3(zero, names)
    ranks = [dist.get_rank(group=group) for group in getattr(zero, "real_dp_process_group", ())]
    if hasattr(zero, "round_robin_bit16_groups"):
        return _of_flats(
            zip(zero.round_robin_bit16_groups, zero.single_partition_of_fp32_groups, ranks, strict=True), names
        )
    if hasattr(zero, "fp32_groups_flat_partition"):  # stage 1 in bf16
        return _of_flats(zip(zero.bf16_groups, zero.fp32_groups_flat_partition, ranks, strict=True), names)
    if hasattr(zero, "fp32_groups_flat"):  # stage 0 in 16 bits: every rank has whole copies in fp32
        return _of_flats(zip(zero.fp16_groups, zero.fp32_groups_flat, repeat(0), strict=False), names)
    return None


def _of_flats(groups: Iterable[tuple[Any, torch.Tensor, int]], names: dict[int, str]) -> Iterator[FlatPart]:
    """Each group of parameters is one flat tensor, of which a rank holds an equal part."""
    for parameters, flat, rank in groups:
        start, at = rank * flat.numel(), 0
        for parameter in parameters:
            low, high = max(at, start), min(at + parameter.numel(), start + flat.numel())
            if low < high:
                yield FlatPart(names[id(parameter)], low - at, slice(low - start, high - start), flat)
            at += parameter.numel()


def _of_zero_3(zero: Any, names: dict[int, str]) -> Iterator[FlatPart]:
    """Each parameter is divided by itself into equal parts, the last ones padded."""
    rank = dist.get_rank(group=zero.dp_process_group)
    for parameters, flat in zip(zero.fp16_groups, zero.fp32_partitioned_groups_flat, strict=True):
        at = 0
        for parameter in parameters:
            part = parameter.partition_numel()
            size = min(part, parameter.ds_numel - rank * part)
            if size > 0:
                yield FlatPart(names[id(parameter)], rank * part, slice(at, at + size), flat)
            at += part


def _of_parameters(optimizer: Any, names: dict[int, str]) -> Iterator[Part]:
    """One device, DDP, or FSDP2, whose parameters are DTensors."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            name, first, local = names[id(parameter)], _first_element(parameter), local_part(parameter.detach())
            if local.numel():
                yield from _with_states(name, first, local, optimizer.state.get(parameter, {}))


def _with_states(name: str, first: int, local: torch.Tensor, states: dict[str, Any]) -> Iterator[Part]:
    yield Part(name, WEIGHT, first, local.flatten())
    for key, state in states.items():
        if torch.is_tensor(state) and state.dim() > 0:
            for tensor in plain_tensors(local_part(state.detach())):
                yield Part(name, key, first if tensor.numel() == local.numel() else 0, tensor.flatten())
        elif first == 0 and state is not None:  # a number of steps is the same on all ranks
            yield Part(name, key, 0, torch.tensor([float(state)], dtype=torch.float64))


def _first_element(parameter: torch.Tensor) -> int:
    """The place of this rank's first element. FSDP2 divides the first dimension."""
    if not isinstance(parameter, DTensor):
        return 0
    _, offset = compute_local_shape_and_global_offset(parameter.shape, parameter.device_mesh, parameter.placements)
    return int(sum(at * step for at, step in zip(offset, parameter.stride(), strict=True)))


@dataclass(frozen=True)
class Digest:
    """By parameter: the elements of its weights, the bytes and non-finite elements of weights and state, and a hash of each."""

    rows: dict[str, list[int]]

    @classmethod
    def of(cls, model: torch.nn.Module, optimizer: Any, *, divided: bool) -> Self:
        """The digest of the trained parameters of an unwrapped model. A collective if they are `divided` among the ranks."""
        numbers = {name: number for number, name in enumerate(trained_shapes(model))}
        device = next(iter(model.parameters())).device
        tables = {device: torch.zeros(len(numbers), 6, dtype=torch.int64, device=device)}  # sums modulo 2**64
        for part in parts(model, optimizer):
            place = part.values.device
            tables.setdefault(place, torch.zeros(len(numbers), 6, dtype=torch.int64, device=place))
            _add(tables[place][numbers[part.name]], part)
        rows = torch.stack([table.to(device) for table in tables.values()]).sum(0)
        if divided:
            reduce_over_ranks(rows)
        return cls(dict(zip(numbers, rows.tolist(), strict=True)))

    def incomplete(self, shapes: dict[str, list[int]]) -> list[str]:
        """The names of parameters of which the optimizers of all ranks together do not have every element."""
        return [name for name, row in self.rows.items() if row[_ELEMENTS] != torch.Size(shapes[name]).numel()]

    @property
    def not_finite(self) -> list[str]:
        """The names of parameters with NaN or infinity in their weights or optimizer state."""
        return [name for name, row in self.rows.items() if row[_WEIGHT_NOT_FINITE] or row[_STATE_NOT_FINITE]]

    @property
    def weights_not_finite(self) -> list[str]:
        """The names of parameters with NaN or infinity in their weights."""
        return [name for name, row in self.rows.items() if row[_WEIGHT_NOT_FINITE]]

    def differences(self, saved: "Digest", *, converted: bool, weights_only: bool) -> list[str]:
        """The names of parameters whose weights or optimizer state differ from those `saved`.

        `converted`: with another strategy they may have another dtype, and are then not compared.
        """
        columns = (_WEIGHT,) if weights_only else (_BYTES, _WEIGHT, _STATE)

        def differ(row: list[int], before: list[int] | None) -> bool:
            if before is None or (converted and row[_BYTES] != before[_BYTES]):
                return before is None
            return any(row[column] != before[column] for column in columns)

        return [name for name, row in self.rows.items() if differ(row, saved.rows.get(name))]

    def write(self, checkpoint: Path) -> None:
        """Writes it into the folder of a checkpoint."""
        (checkpoint / _FILE).write_text(json.dumps(self.rows), encoding="utf-8")

    @classmethod
    def read(cls, checkpoint: Path) -> Self | None:
        """The digest in a checkpoint; None for one of an earlier version of Lathe."""
        file = checkpoint / _FILE
        return cls(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else None


def trained_shapes(model: torch.nn.Module) -> dict[str, list[int]]:
    """The full shapes of the trained parameters of an unwrapped model by name."""
    names = names_of(model)
    return {names[id(parameter)]: full_shape(parameter) for parameter in model.parameters() if parameter.requires_grad}


def _add(row: torch.Tensor, part: Part) -> None:
    """Adds a part to the row of its parameter, a view of shape (6,) on the part's device."""
    is_weight = part.kind == WEIGHT
    row[_WEIGHT if is_weight else _STATE] += _hash(part)
    row[_BYTES] += part.values.nbytes
    if is_weight:
        row[_ELEMENTS] += part.values.numel()
    if part.values.is_floating_point():
        for chunk in torch.split(part.values, _CHUNK):
            row[_WEIGHT_NOT_FINITE if is_weight else _STATE_NOT_FINITE] += (~torch.isfinite(chunk)).sum()


def _hash(part: Part) -> torch.Tensor:
    """The sum of the elements' bits times their places, times a number of the name: hashes of parts add up to the whole's."""
    total = torch.zeros((), dtype=torch.int64, device=part.values.device)
    place = part.first + 1
    for chunk in torch.split(part.values.view(_INTEGERS[part.values.element_size()]), _CHUNK):
        places = torch.arange(place, place + len(chunk), device=chunk.device)
        total += places.mul_(chunk).sum()
        place += len(chunk)
    factor = int.from_bytes(hashlib.sha256(f"{part.name} {part.kind}".encode()).digest()[:8], signed=True)
    return total * (factor | 1)  # an odd number, which no hash modulo 2**64 loses information by
