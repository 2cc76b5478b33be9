"""What AdaLoRA has learned of the importance of its ranks: neither weights nor optimizer state, and needed to resume."""

from pathlib import Path
from typing import Any

import torch

_FILE = "rank_allocation.pt"
_IMPORTANCES = ("ipt", "exp_avg_ipt", "exp_avg_unc")


def write(model: Any, checkpoint: Path) -> None:
    """Writes it into the folder of a checkpoint; nothing for another method. `model` is unwrapped."""
    if (allocator := _allocator(model)) is not None:
        state = {name: getattr(allocator, name) for name in _IMPORTANCES}
        torch.save(state | {"rank_pattern": model.peft_config["default"].rank_pattern}, checkpoint / _FILE)


def restore(model: Any, checkpoint: Path) -> None:
    """Restores it from a checkpoint, if it is there."""
    allocator, file = _allocator(model), checkpoint / _FILE
    if allocator is None or not file.is_file():
        return
    state = torch.load(file, map_location=next(iter(model.parameters())).device, weights_only=True)
    model.peft_config["default"].rank_pattern = state.pop("rank_pattern")
    for name, values in state.items():
        setattr(allocator, name, values)


def _allocator(model: Any) -> Any:
    return getattr(getattr(model, "base_model", None), "rankallocator", None)
