"""Which activations are recomputed in the backward pass, and where those that are kept lie."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch.autograd.graph import save_on_cpu
from transformers.modeling_layers import GradientCheckpointingLayer

from training.config import Checkpointing


def spare_every_second_layer(model: torch.nn.Module) -> int:
    """Recomputes in every second layer alone, where all did; the number of layers that still do."""
    layers = [part for part in model.modules() if isinstance(part, GradientCheckpointingLayer)]
    for number, layer in enumerate(layers):
        layer.gradient_checkpointing = layer.gradient_checkpointing and number % 2 == 0
    return sum(bool(layer.gradient_checkpointing) for layer in layers)


def keeping(kind: Checkpointing, device: torch.device) -> AbstractContextManager[object]:
    """Around a forward pass: what it keeps for the backward pass lies in host memory where that was asked for."""
    return save_on_cpu(pin_memory=device.type == "cuda") if kind is Checkpointing.OFFLOADED else nullcontext()
