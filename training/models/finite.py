"""Refuses models whose weights are not finite: their answers mean nothing."""

from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors import safe_open

from training.errors import UserError


def check_finite(model: torch.nn.Module, field: str, origin: str, within: str = "") -> None:
    """Checks the floating-point weights of a model whose names contain `within`; the error has their `field` and `origin`.

    Raises:
        UserError: a weight is NaN or infinite.
    """
    _check(((name, weight) for name, weight in model.named_parameters() if within in name), field, origin)


def check_files_finite(folder: Path, field: str, origin: str) -> None:
    """As `check_finite`, for the weights in a folder's files, which another program loads."""
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as stored:
            _check(((name, stored.get_tensor(name)) for name in stored.keys()), field, origin)  # noqa: SIM118


@torch.no_grad()
def _check(named: Iterable[tuple[str, torch.Tensor]], field: str, origin: str) -> None:
    finite = {name: bool(torch.isfinite(weight).all()) for name, weight in named if weight.is_floating_point()}
    if broken := [name for name, is_finite in finite.items() if not is_finite]:
        message = f"has NaN or infinity in {len(broken)} of {len(finite)} weights, such as {broken[0]}."
        raise UserError(field, origin, message, "Use an earlier checkpoint, or train again with a lower learning rate.")
