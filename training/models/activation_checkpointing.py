"""Selective activation checkpointing, and offloading of saved activations to host memory."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch.autograd.graph import save_on_cpu
from transformers.modeling_layers import GradientCheckpointingLayer

from training.config.choices import Checkpointing


def checkpoint_every_second_layer(model: torch.nn.Module) -> int:
    """Turns activation checkpointing off in every second layer. Returns the number of layers that still recompute."""
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    for number, layer in enumerate(layers):
        layer.gradient_checkpointing = layer.gradient_checkpointing and number % 2 == 0
    return sum(bool(layer.gradient_checkpointing) for layer in layers)


def saved_activations(kind: Checkpointing, device: torch.device) -> AbstractContextManager[object]:
    """A context for the forward pass: with OFFLOADED, activations saved for the backward pass are moved to host memory."""
    return save_on_cpu(pin_memory=device.type == "cuda") if kind is Checkpointing.OFFLOADED else nullcontext()
