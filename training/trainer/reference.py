"""The reference of a loss that compares the model with itself without its adapter: no noise, and a new adapter changes nothing."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from transformers.integrations.neftune import neftune_post_forward_hook

from training.batches.layout import base_of, evaluating
from training.config.choices import LoraInit, Precision
from training.config.run_config import RunConfig
from training.errors import UserError
from training.tables import only

_TEST_TOKENS = 8
_TOLERANCE = only({Precision.FP32: 1e-3, Precision.FP16: 0.05, Precision.BF16: 0.05})
"""Largest difference of two log probabilities; 16-bit weights of an adapter or of whole modules are rounded."""


def add_noise_with_gradient_only(model: torch.nn.Module) -> None:
    """Keeps NEFTune's noise, whose hook transformers has added to the embeddings, out of passes without gradient.

    trl computes the reference with the model that trains, in training mode.
    """
    hooks = base_of(model).get_input_embeddings()._forward_hooks
    for key, hook in hooks.items():
        if hook is neftune_post_forward_hook:
            hooks[key] = _noise


def _noise(module: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor:
    noisy: torch.Tensor = neftune_post_forward_hook(module, inputs, output) if torch.is_grad_enabled() else output
    return noisy


def begins_as_reference(config: RunConfig) -> bool:
    """True if the loss compares the model with itself without its adapter, which is new and adds nothing yet."""
    unchanged = config.lora_init in (LoraInit.DEFAULT, LoraInit.GAUSSIAN) and not config.init_adapter
    return config.has_reference and config.method.is_lora and unchanged


def check_reference(
    config: RunConfig, model: torch.nn.Module, without: Callable[[], AbstractContextManager[Any]], precision: str
) -> None:
    """Checks that a new adapter changes no probability, so that the first loss is that of equal models: ln 2 for DPO, KL 0.

    `without` is a context in which the model computes as the reference. Every rank calls it.

    Raises:
        UserError: the reference differs.
    """
    vocabulary = base_of(model).config.get_text_config().vocab_size
    tokens = (torch.arange(1, 1 + _TEST_TOKENS) % vocabulary)[None].to(next(model.parameters()).device)
    with evaluating(model):
        own = model(input_ids=tokens)["logits"].float().log_softmax(-1)
    model.train()
    with torch.no_grad(), without():
        reference = model(input_ids=tokens)["logits"].float().log_softmax(-1)
    likely = own > own.max() - 20  # others are rounded more
    difference = float((own - reference)[likely].abs().max())
    if not difference <= _TOLERANCE[Precision(precision)]:
        message = f"compares with another reference: a new adapter changes log probabilities by up to {difference:.3g}."
        raise UserError(
            "task", config.task.value, message, "Report this, with the run's settings, as a fault of Lathe."
        )
