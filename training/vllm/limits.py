"""Which models and adapters vLLM can load as they were trained, by the adapters' configurations and the names of their tensors."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from training.config import vllm_limits
from training.config.vllm_limits import RANKS
from training.errors import UserError


class NotLoaded(UserError):  # noqa: N818
    """vLLM cannot load a model; transformers can answer in its place."""


@dataclass(frozen=True)
class Models:
    """What one process of vLLM loads: a base model (folder or hub id) under a name, and adapters on it by theirs."""

    base: str
    name: str = "base"
    revision: str = "main"
    dtype: str = "auto"
    quantized: bool = False
    adapters: Mapping[str, Path] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        """The smallest maximum rank that all adapters fit in; 0 without adapters."""
        return max((max_rank(_config(folder)["r"]) for folder in self.adapters.values()), default=0)


def max_rank(rank: int) -> int:
    """The smallest of vLLM's maximum ranks that a rank fits in, else the rank itself."""
    return next((most for most in RANKS if most >= rank), rank)


def check(models: Models, config: Any, tokens: int) -> None:
    """Checks that vLLM can load the models. `config` is the base model's, `tokens` the size of the tokenizer.

    Raises:
        NotLoaded: it cannot.
    """
    if models.quantized:
        raise NotLoaded("vllm", models.base, "is not loaded: its weights are quantized by bitsandbytes.")
    if config.is_encoder_decoder:
        raise NotLoaded("vllm", models.base, "is not loaded: it is an encoder-decoder.")
    if tokens > config.get_text_config().vocab_size:
        raise NotLoaded("vllm", models.base, "is not loaded: its tokenizer has tokens that were added.")
    for folder in models.adapters.values():
        if reason := refusal(folder):
            raise NotLoaded("vllm", folder.name, f"is not loaded: the adapter {reason}.")


def refusal(folder: Path) -> str:
    """Why vLLM cannot load an adapter as PEFT does, or ""."""
    if reason := vllm_limits.refusal(_config(folder)):
        return reason
    other = next((name for name in _tensors(folder) if not name.endswith((".lora_A.weight", ".lora_B.weight"))), None)
    return f"has more than LoRA's matrices: {other}" if other else ""


def _config(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "adapter_config.json").read_text(encoding="utf-8")))


def _tensors(folder: Path) -> list[str]:
    from safetensors import safe_open

    with safe_open(folder / "adapter_model.safetensors", framework="numpy") as stored:
        return list(stored.keys())
