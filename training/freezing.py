"""Training a few layers of a model and freezing the rest."""

from collections.abc import Iterator
from typing import Any

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


def beside_text(model: Any) -> list[str]:
    """The modules of a multimodal model that text never passes through, such as a vision tower; none of a model of text.

    They get no gradient, which DDP takes for an error, and an optimizer would hold state for them all the same.
    """
    config = model.config
    if config.is_encoder_decoder or config.get_text_config() is config:
        return []
    parts = (model.get_decoder(), model.get_input_embeddings(), model.get_output_embeddings(), *_heads(model))
    text = {id(parameter) for part in parts if part is not None for parameter in part.parameters()}
    return list(_without(model, text, ""))


def _heads(model: Any) -> list[Any]:
    return [getattr(model, name, None) for name in _NEW_HEADS]


def _without(module: torch.nn.Module, kept: set[int], name: str) -> Iterator[str]:
    """The largest modules within `module` that have parameters and none of those that are `kept`."""
    for child_name, child in module.named_children():
        path = f"{name}.{child_name}" if name else child_name
        own = {id(parameter) for parameter in child.parameters()}
        if own and not own & kept:
            yield path
        else:
            yield from _without(child, kept, path)


def freeze_beside_text(model: torch.nn.Module, names: list[str]) -> None:
    """Freezes the modules named, and what an adapter has put into them."""
    inside = tuple(f"{name}." for name in names)
    for name, parameter in model.named_parameters():
        if name.removeprefix("base_model.model.").startswith(inside):
            parameter.requires_grad_(False)


def transformer_layers(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The blocks of the model in their order: its longest list of modules, of a decoder the last where there are several."""
    lists = [list(part) for part in model.modules() if isinstance(part, torch.nn.ModuleList)]
    return max(reversed(lists), key=len, default=[])
