"""A digest of what a run trains: counts, finiteness and hashes of each parameter and its optimizer state, however they are divided.

A checkpoint keeps it. After a resume the digest must be the same, or something was not saved or not loaded.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
import torch.distributed as dist

from training.checkpointing.parts import WEIGHT, Part, full_shape, names_of, parts

_FILE = "digest.json"
_CHUNK = 2**20  # elements that are hashed at once
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_ELEMENTS, _BYTES, _WEIGHT_NOT_FINITE, _STATE_NOT_FINITE, _WEIGHT, _STATE = range(6)


@dataclass(frozen=True)
class Digest:
    """By parameter: the elements of its weights, the bytes and non-finite elements of weights and state, and a hash of each."""

    rows: dict[str, list[int]]

    @classmethod
    def of(cls, model: torch.nn.Module, optimizer: Any, *, divided: bool) -> Self:
        """The digest of the trained parameters of an unwrapped model. A collective if they are `divided` among the ranks."""
        sums = {name: [_Sum() for _ in range(6)] for name in trained_shapes(model)}
        for part in parts(model, optimizer):
            _add(sums[part.name], part)
        device = next(iter(model.parameters())).device
        rows = torch.stack([torch.stack([total.on(device) for total in row]) for row in sums.values()])
        if divided and dist.is_initialized() and dist.get_world_size() > 1:
            dist.all_reduce(rows)
        return cls(dict(zip(sums, rows.tolist(), strict=True)))

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


class _Sum:
    """A sum of 64-bit integers, modulo 2**64, on the devices of its terms."""

    def __init__(self) -> None:
        self._terms: dict[torch.device, torch.Tensor] = {}

    def add(self, term: torch.Tensor) -> None:
        before = self._terms.get(term.device)
        self._terms[term.device] = term if before is None else before + term

    def on(self, device: torch.device) -> torch.Tensor:
        total = torch.zeros((), dtype=torch.int64, device=device)
        for term in self._terms.values():
            total = total + term.to(device)
        return total


def trained_shapes(model: torch.nn.Module) -> dict[str, list[int]]:
    """The full shapes of the trained parameters of an unwrapped model by name."""
    names = names_of(model)
    return {names[id(parameter)]: full_shape(parameter) for parameter in model.parameters() if parameter.requires_grad}


def _add(row: list[_Sum], part: Part) -> None:
    row[_WEIGHT if part.kind == WEIGHT else _STATE].add(_hash(part))
    row[_BYTES].add(torch.tensor(part.values.nbytes))
    if part.kind == WEIGHT:
        row[_ELEMENTS].add(torch.tensor(part.values.numel()))
    if part.values.is_floating_point():
        for chunk in torch.split(part.values, _CHUNK):
            row[_WEIGHT_NOT_FINITE if part.kind == WEIGHT else _STATE_NOT_FINITE].add((~torch.isfinite(chunk)).sum())


def _hash(part: Part) -> torch.Tensor:
    """The sum of the elements' bits times their places, times a number of the name: hashes of parts add up to the whole's."""
    total = torch.zeros((), dtype=torch.int64, device=part.values.device)
    place = part.first + 1
    for chunk in torch.split(part.values.view(_INTEGERS[part.values.element_size()]), _CHUNK):
        places = torch.arange(place, place + len(chunk), device=chunk.device)
        total += places.mul_(chunk).sum()
        place += len(chunk)
    return total * _factor(f"{part.name} {part.kind}")


def _factor(name: str) -> int:
    """An odd number, which no hash modulo 2**64 loses information by."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], signed=True) | 1
