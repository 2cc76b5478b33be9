"""Keeps peft and transformers from importing bitsandbytes and torchao where a run does not use them. No torch.

Both import these libraries if they are installed, which takes 2 of the 10 seconds in which a process starts.
"""

import sys
from pathlib import Path

from training.config.choices import LoraInit, Quantization
from training.config.run_config import RunConfig
from training.errors import UserError
from training.model_info.config_json import read_config
from training.model_info.folder import adapter_base
from training.rewards.reward_model import RewardModel
from training.rewards.rewards import reward_models

LIBRARIES = ("bitsandbytes", "torchao")


def leave_out(*configs: RunConfig) -> None:
    """Makes the libraries count as not installed in this process, unless a run may need one. Call it before their import."""
    if any(may_quantize(config) for config in configs):
        return
    for name in LIBRARIES:
        # importlib.util.find_spec, by which both look for a library, returns None for such an entry.
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]


def may_quantize(config: RunConfig) -> bool:
    """True if the run quantizes weights or optimizer states, or the model may be quantized already."""
    formats = {config.quantized, config.teacher_quantization, *(model.quantization for model in _scored_by(config))}
    if formats != {Quantization.NONE} or config.lora_init is LoraInit.LOFTQ:
        return True
    if not config.optimizer.traits.built_in:
        return True
    others = [*([config.teacher] if config.teacher else []), *(model.name for model in _scored_by(config))]
    models = [config.model, *(adapter_base(Path(name)) or name for name in others)]
    try:
        return any("quantization_config" in read_config(model) for model in models)
    except UserError:  # on the hub
        return True


def _scored_by(config: RunConfig) -> list[RewardModel]:
    return reward_models(config.rewards) if config.task.traits.rewards_samples else []
