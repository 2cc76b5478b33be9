"""Checks before a checkpoint or a result counts that its files have every trained parameter. Reads names and shapes, not values."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch.distributed.checkpoint.filesystem import FileSystemReader

from training.config.choices import Strategy
from training.errors import UserError
from training.run_folder.checkpoint_layout import CheckpointLayout

Shapes = dict[str, list[int]]


def check_contents(checkpoint: Path, layout: CheckpointLayout, trained: Shapes) -> None:
    """Checks that a checkpoint's files have the `trained` parameters with their shapes. Raises UserError if a parameter is
    missing or has another shape."""
    names, saved = layout.names_in_files, shapes_in(checkpoint, layout)
    missing = [
        name for name, shape in trained.items() if shape not in (saved.get(name), saved.get(names.get(name, name)))
    ]
    check_missing(checkpoint.name, missing, len(trained))


def check_missing(name: str, missing: list[str], count: int) -> None:
    """Refuses a checkpoint or result in which some of `count` trained parameters are `missing`. Raises UserError if some are."""
    if missing:
        refuse(name, f"lacks {len(missing)} of {count} trained parameters, such as {missing[0]}, and does not count.")


def refuse(name: str, message: str) -> None:
    """Raises the error of a checkpoint or result that is not what was trained.

    Raises:
        UserError: always.
    """
    fix = "Earlier checkpoints are kept. Please report this with the run's configuration, and resume with another strategy."
    raise UserError("checkpoint", name, message, fix)


def shapes_in(checkpoint: Path, layout: CheckpointLayout) -> Shapes:
    """The names and shapes of the weights in a checkpoint's files."""
    if layout.strategy.zero_stage is not None:
        return dict(_of_zero(checkpoint, layout))
    if layout.strategy is Strategy.FSDP:
        metadata = FileSystemReader(checkpoint / "pytorch_model_fsdp_0").read_metadata().state_dict_metadata
        return {name.removeprefix("model."): list(getattr(entry, "size", [])) for name, entry in metadata.items()}
    return shapes_of_files(checkpoint)


def shapes_of_files(folder: Path) -> Shapes:
    """The names and shapes of the tensors in a folder's safetensors files."""
    shapes: Shapes = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            shapes |= {name: list(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118
    return shapes


def _of_zero(checkpoint: Path, layout: CheckpointLayout) -> Iterator[tuple[str, list[int]]]:
    """DeepSpeed's files name the parameters, in the order of the flat partitions; those must hold all their elements."""
    (folder,) = checkpoint.glob("global_step*")
    (model, *_) = sorted(folder.glob("*mp_rank_00_model_states.pt"))
    if layout.strategy is Strategy.ZERO0:
        yield from ((name, list(tensor.shape)) for name, tensor in _meta(model)["module"].items())
        return
    groups = _meta(model)["param_shapes"]
    key = "fp32_flat_groups" if layout.strategy is Strategy.ZERO3 else "single_partition_of_fp32_groups"
    ranks = [_meta(file)["optimizer_state_dict"][key] for file in optimizer_files(folder, layout)]
    if layout.strategy is Strategy.ZERO3:
        needed = sum(math.ceil(shape.numel() / len(ranks)) for group in groups for shape in group.values())
        whole = all(sum(flat.numel() for flat in rank) == needed for rank in ranks)
    else:
        held = [sum(rank[number].numel() for rank in ranks) for number in range(len(groups))]
        whole = all(
            size >= sum(shape.numel() for shape in group.values()) for size, group in zip(held, groups, strict=True)
        )
    if whole:
        yield from ((name, list(shape)) for group in groups for name, shape in group.items())


def optimizer_files(folder: Path, layout: CheckpointLayout) -> list[Path]:
    """The ranks' files of weights and optimizer state in a folder of DeepSpeed."""
    names = [f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in range(layout.world_size)]
    # In bf16 the names begin with bf16_.
    return [next(folder.glob(f"*{name}"), folder / name) for name in names]


def _meta(file: Path) -> Any:
    """What a file of torch.save has, with tensors without values. A pickle with DeepSpeed's classes, which this run wrote."""
    return torch.load(file, map_location="meta", weights_only=False)
