"""Training a few layers of a model and freezing the rest."""

import torch

from training.failure import UserError

_NEW_HEADS = ("score", "classifier")


def train_last_layers(model: torch.nn.Module, count: int, besides: list[str]) -> None:
    """Freezes all but the last `count` transformer layers, the modules named in `besides`, and a head that is new with the task.

    Raises:
        UserError: the model has fewer layers.
    """
    layers = transformer_layers(model)
    if count > len(layers):
        fix = f"Give at most {len(layers)}, or leave it empty to train everything."
        raise UserError("trainable_layers", count, f"is more than the model's {len(layers)} layers.", fix)
    model.requires_grad_(False)
    for layer in layers[-count:]:
        layer.requires_grad_(True)
    for name, part in model.named_modules():
        if name.rsplit(".", 1)[-1] in (*besides, *_NEW_HEADS):
            part.requires_grad_(True)


def transformer_layers(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The blocks of the model in their order: its longest list of modules, of a decoder the last where there are several."""
    lists = [list(part) for part in model.modules() if isinstance(part, torch.nn.ModuleList)]
    return max(reversed(lists), key=len, default=[])
