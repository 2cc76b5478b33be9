"""What a model has forgotten by training: how far its answers outside of the data have moved, and its loss on a plain text."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy, kl_div, log_softmax
from transformers import PreTrainedTokenizerBase

_TEXT = Path(__file__).with_name("plain_text.txt")
_WINDOW = 512  # tokens of the text that are read at once

Base = Callable[[], AbstractContextManager[Any]]
"""A context with the model before training."""


@torch.inference_mode()
def forgotten(
    model: Any,
    base: Base,
    tokenizer: PreTrainedTokenizerBase,
    answered: Sequence[tuple[list[int], str]],
    text: str,
) -> dict[str, Any]:
    """Returns `kl`, the Kullback-Leibler divergence of the trained model from the base, in nats: the mean over the `tokens` of the
    base's own answers, `answered` with the tokens of their prompts; and the mean loss of a text before and after training, in nats
    per token. `kl` is None without prompts."""
    divergences = []
    for prompt, answer in answered:
        ids = torch.tensor([prompt + tokenizer(answer, add_special_tokens=False)["input_ids"]], device=model.device)
        after = _log_probabilities(model, ids)[len(prompt) - 1 :]
        with base() as before_training:
            before = _log_probabilities(before_training, ids)[len(prompt) - 1 :]
        divergences.append(kl_div(after, before, reduction="none", log_target=True).sum(dim=-1))
    found = torch.cat(divergences) if divergences else None
    windows = _windows(model, tokenizer, text or _TEXT.read_text(encoding="utf-8"))
    after_loss = _loss(model, windows)
    with base() as before_training:
        before_loss = _loss(before_training, windows)
    return {
        "prompts": len(answered),
        "tokens": 0 if found is None else len(found),
        "kl": None if found is None else float(found.mean()),
        "text_tokens": sum(window.shape[1] - 1 for window in windows),
        "loss_before": before_loss,
        "loss_after": after_loss,
    }


def _log_probabilities(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """(tokens, vocabulary), in fp32."""
    return log_softmax(model(input_ids=ids, use_cache=False).logits[0, -ids.shape[1] :].float(), dim=-1)


def _windows(model: Any, tokenizer: PreTrainedTokenizerBase, text: str) -> list[torch.Tensor]:
    """The text in parts that the model can read, each of at least two tokens."""
    longest = min(_WINDOW, getattr(model.config.get_text_config(), "max_position_embeddings", None) or _WINDOW)
    tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
    parts = [tokens[start : start + longest] for start in range(0, len(tokens), longest)]
    return [torch.tensor([part], device=model.device) for part in parts if len(part) > 1]


def _loss(model: Any, windows: Sequence[torch.Tensor]) -> float:
    """The mean loss of a token, in nats."""
    total, count = 0.0, 0
    for ids in windows:
        logits = model(input_ids=ids, use_cache=False).logits[0, -ids.shape[1] : -1].float()
        total += float(cross_entropy(logits, ids[0, 1:], reduction="sum"))
        count += ids.shape[1] - 1
    return total / max(count, 1)
