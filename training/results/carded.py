"""What the program that answers rows knows of their score card."""

import hashlib
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from training.chat.rendering_settings import ChatSettings
from training.config.run_config import RunConfig
from training.run_folder.record import shared, weights_digest
from training.scoring.score_card import CLASSES, GREEDY, OWN, TRAINED_TEMPLATE, ScoreCard

_DIGITS = 16


def card(
    config: RunConfig,
    tokenizer: PreTrainedTokenizerBase,
    dtype: torch.dtype,
    *,
    data: tuple[str, str, str | None],
    rows: int,
    longest: int,
    source: str,
    weights: Path | None,
    engine: str = "",
    own: Mapping[str, Any] | None = None,
    shots: int = 0,
    trained_template: Any = None,
) -> ScoreCard:
    """The score card of `rows` answers of at most `longest` tokens, without the metrics; `data` are its name, SHA-256 and column
    mapping. The weights are those in a folder; those before training for None. `own` is the model's own generation configuration,
    if it applies; `shots` rows of the training data stand before each prompt. `trained_template` is shown if it
    is not the tokenizer's."""
    name, sha256, columns = data
    is_classifier = config.task.traits.has_classes
    return ScoreCard(
        data=name,
        sha256=sha256,
        columns=columns,
        rows=rows,
        decoding={"search": CLASSES} if is_classifier else _decoding(longest, own),
        prompt=_prompt(config, tokenizer) | _trained(tokenizer, trained_template),
        engine=engine or f"transformers {version('transformers')}",
        dtype=str(dtype).removeprefix("torch."),
        weights=_weights(config, source, weights) | ({"shots": shots} if shots else {}),
    )


def _decoding(longest: int, own: Mapping[str, Any] | None) -> dict[str, Any]:
    search = GREEDY if own is None else OWN
    return {"search": search, "max_new_tokens": longest} | {f"own_{name}": value for name, value in (own or {}).items()}


def _prompt(config: RunConfig, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    chat = ChatSettings.of(config)
    form: dict[str, Any] = {"template_sha256": _digest(tokenizer.chat_template)}
    form |= {f"template_{name}": value for name, value in chat.template_arguments.items()}
    if config.task.traits.has_classes:
        form["max_length"] = config.max_length
    return form | {"reasoning_history": chat.reasoning.value}


def _trained(tokenizer: PreTrainedTokenizerBase, template: Any) -> dict[str, Any]:
    return {} if template in (None, tokenizer.chat_template) else {TRAINED_TEMPLATE: _digest(template)}


def _digest(template: Any) -> str | None:
    return hashlib.sha256(str(template).encode()).hexdigest()[:_DIGITS] if template else None


def _weights(config: RunConfig, source: str, weights: Path | None) -> dict[str, Any]:
    base = {
        "source": source,
        "base": shared(config).model,
        "revision": config.revision,
        "quantization": config.quantized.value,
    }
    if weights is None:
        return base
    return base | {"method": config.method.value, "sha256": weights_digest(weights)[:_DIGITS]}
