"""Refuses models whose weights are not finite: their answers mean nothing."""

import torch

from training.errors import UserError


@torch.no_grad()
def check_finite(model: torch.nn.Module, field: str, origin: str, within: str = "") -> None:
    """Checks the floating-point weights of a model whose names contain `within`; the error has their `field` and `origin`.

    Raises:
        UserError: a weight is NaN or infinite.
    """
    named = ((name, weight) for name, weight in model.named_parameters() if within in name)
    weights = {name: weight for name, weight in named if weight.is_floating_point()}
    if broken := [name for name, weight in weights.items() if not bool(torch.isfinite(weight).all())]:
        message = f"has NaN or infinity in {len(broken)} of {len(weights)} weights, such as {broken[0]}."
        raise UserError(field, origin, message, "Use an earlier checkpoint, or train again with a lower learning rate.")
