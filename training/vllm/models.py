"""What vLLM loads of a run, and the configurations of its base model."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, GenerationConfig

from training.config.choices import Quantization
from training.config.run_config import RunConfig
from training.vllm.limits import Models, NotLoaded


def models_of(config: RunConfig, weights: Path | None, dtype: torch.dtype) -> Models:
    """What vLLM loads for the weights in a folder of a run; None for those before training."""
    precision = str(dtype).removeprefix("torch.")
    if weights is not None and not config.method.adapts:
        return Models(str(weights), dtype=precision)
    adapters = {"adapter": weights} if weights is not None else {}
    quantized = config.quantized is not Quantization.NONE
    return Models(config.model, "base", config.revision or "main", precision, quantized, adapters)


def base_config(models: Models) -> Any:
    """The configuration of the base model.

    Raises:
        NotLoaded: there is none.
    """
    try:
        return AutoConfig.from_pretrained(models.base, revision=models.revision, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise NotLoaded("vllm", models.base, f"is not loaded: {error}") from error


def generation_config(models: Models, config: Any) -> GenerationConfig:
    """The base model's, as transformers loads it."""
    try:
        return GenerationConfig.from_pretrained(models.base, revision=models.revision)
    except OSError:
        return GenerationConfig.from_model_config(config)
