"""Which of PEFT's adapters vLLM can load as they were trained, by their settings. No torch."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from training.config.choices import LoraInit, Quantization
from training.config.name_values import OptionError, parse
from training.config.run_config import RunConfig

RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""The values of vLLM's --max-lora-rank that adapters need."""

_ALONE = {
    "use_dora": "uses DoRA",
    "modules_to_save": "trains whole modules (modules_to_save)",
    "lora_bias": "trains biases",
    "rank_pattern": "has modules of different ranks",
    "alpha_pattern": "has modules of different alphas",
    "trainable_token_indices": "trains single tokens",
    "target_parameters": "adapts parameters, not modules",
    "layer_replication": "repeats layers",
    "alora_invocation_tokens": "is an activated LoRA",
}
"""Settings of PEFT's LoRA that vLLM refuses or ignores."""
_OTHER_BASE = (*(init.value for init in LoraInit if init.has_own_base), "corda")


def refusal(adapter: Mapping[str, Any]) -> str:
    """Why vLLM cannot load an adapter with these values of adapter_config.json, as the rest of a sentence; empty if it can."""
    if adapter.get("peft_type") != "LORA":
        return f"is of the method {adapter.get('peft_type')}"
    if adapter["r"] > RANKS[-1]:
        return f"has rank {adapter['r']}; the largest is {RANKS[-1]}"
    if adapter.get("bias", "none") != "none":
        return "trains biases"
    if str(adapter.get("init_lora_weights")).startswith(_OTHER_BASE):
        return f"belongs to base weights that {adapter['init_lora_weights']} changed"
    return next((reason for setting, reason in _ALONE.items() if adapter.get(setting)), "")


def refusal_of(config: RunConfig) -> str:
    """Why vLLM cannot load what a run trains; empty if it can, as far as the settings tell."""
    if config.quantized is not Quantization.NONE:
        return "its base weights are quantized by bitsandbytes"
    if not config.method.adapts:
        # Measured with vLLM 0.32: reload_weights leaves the old head of a model with tied embeddings.
        return "between steps it takes new weights of an adapter, and method full trains those of the model"
    values: dict[str, Any] = {
        "peft_type": config.method.in_peft.upper(), "r": config.lora_r, "use_dora": config.use_dora,
        "modules_to_save": config.modules_to_save, "init_lora_weights": config.lora_init.value,
    }  # fmt: skip
    with suppress(OptionError):  # which a rule of its own explains
        values |= parse(config.method_options)
    reason = refusal(values)
    return f"its adapter {reason}" if reason else ""
