"""Selective activation checkpointing, and offloading of saved activations to host memory."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.autograd.graph import save_on_cpu
from transformers import TrainingArguments
from transformers.modeling_layers import GradientCheckpointingLayer

from training.config.choices import Checkpointing

# What transformers calls it: the first since 5.23.
NAME = next(name for name in ("activation_checkpointing", "gradient_checkpointing") if hasattr(TrainingArguments, name))


def checkpoint_every_second_layer(model: Any) -> int:
    """Turns activation checkpointing off in every second layer. Returns the number of layers that still recompute.

    It stays off in them when checkpointing is enabled again, as trl does after each forward pass of a reference model.
    """
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    name = f"{NAME}_enable"
    enable = getattr(model, name)

    def spare_every_second() -> None:
        for layer in layers[1::2]:
            layer.gradient_checkpointing = False

    def enable_again(*arguments: Any, **named: Any) -> None:
        enable(*arguments, **named)
        spare_every_second()

    spare_every_second()
    setattr(model, name, enable_again)
    return sum(bool(layer.gradient_checkpointing) for layer in layers)


def saved_activations(kind: Checkpointing, device: torch.device) -> AbstractContextManager[object]:
    """A context for the forward pass: with OFFLOADED, activations saved for the backward pass are moved to host memory."""
    return save_on_cpu(pin_memory=device.type == "cuda") if kind is Checkpointing.OFFLOADED else nullcontext()


def offloaded_activations(model: torch.nn.Module, device: torch.device) -> AbstractContextManager[Any]:
    """Returns a context for forward and backward passes in which activations are in host memory in between.

    On a GPU it is trl's: it copies on a stream of its own while the GPU computes, and leaves weights, small tensors and the
    head's input where they are. Elsewhere, where it saves no memory, it is torch's.
    """
    if device.type != "cuda":
        return save_on_cpu()
    from trl.models.activation_offloading import get_act_offloading_ctx_manager

    context: AbstractContextManager[Any] = get_act_offloading_ctx_manager(model, warn_if_no_head=False)
    return context
