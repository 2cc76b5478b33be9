"""Freezes the parts of a model that a run does not train."""

from collections.abc import Iterator
from typing import Any

import torch

from training.errors import UserError

_NEW_HEADS = ("score", "classifier")


def train_last_layers(model: torch.nn.Module, count: int, also: list[str]) -> None:
    """Freezes all but the last `count` transformer layers, the modules named in `also`, and a head that the task adds.

    Raises:
        UserError: the model has fewer layers.
    """
    layers = transformer_layers(model)
    if count > len(layers):
        fix = f"Set it to at most {len(layers)}, or leave it empty to train all layers."
        raise UserError("trainable_layers", count, f"is more than the model's {len(layers)} layers.", fix)
    model.requires_grad_(False)
    # Checkpointing would have the embeddings' output need a gradient, and all frozen layers compute one.
    model.enable_input_require_grads = lambda: None  # type: ignore[assignment]
    for layer in layers[-count:]:
        layer.requires_grad_(True)
    for name, module in model.named_modules():
        if name.rsplit(".", 1)[-1] in (*also, *_NEW_HEADS):
            module.requires_grad_(True)


def modules_without_text(model: Any) -> list[str]:
    """Returns the modules of a multimodal model that process no text, such as a vision tower; empty for a text model.

    They get no gradient, which DDP reports as an error, and the optimizer would still allocate state for them.
    """
    config = model.config
    if config.is_encoder_decoder or config.get_text_config() is config:
        return []
    heads = (getattr(model, name, None) for name in _NEW_HEADS)
    parts = (model.get_decoder(), model.get_input_embeddings(), model.get_output_embeddings(), *heads)
    text = {id(parameter) for part in parts if part is not None for parameter in part.parameters()}
    return list(_largest_without(model, text, ""))


def _largest_without(module: torch.nn.Module, text: set[int], name: str) -> Iterator[str]:
    """Yields the largest modules within `module` that have parameters, none of which is in `text` (ids)."""
    for child_name, child in module.named_children():
        path = f"{name}.{child_name}" if name else child_name
        own = {id(parameter) for parameter in child.parameters()}
        if own and not own & text:
            yield path
        else:
            yield from _largest_without(child, text, path)


def freeze_modules(model: torch.nn.Module, names: list[str]) -> None:
    """Freezes the named modules, including adapters inside them."""
    inside = tuple(f"{name}." for name in names)
    for name, parameter in model.named_parameters():
        if name.removeprefix("base_model.model.").startswith(inside):
            parameter.requires_grad_(False)


def transformer_layers(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Returns the model's blocks in order: its longest ModuleList; of several equally long ones the last (the decoder).

    Lists within a block, such as T5's parts of a layer or a layer's experts, do not count.
    """
    return max(reversed([*_outer_lists(model)]), key=len, default=[])


def _outer_lists(module: torch.nn.Module) -> Iterator[list[torch.nn.Module]]:
    """Yields the ModuleLists that are not within another one."""
    if isinstance(module, torch.nn.ModuleList):
        yield list(module)
    else:
        for child in module.children():
            yield from _outer_lists(child)
