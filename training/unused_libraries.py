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
    formats = {config.quantized, config.teacher_quantization}
    if formats != {Quantization.NONE} or config.lora_init is LoraInit.LOFTQ:
        return True
    if not config.optimizer.is_built_in:
        return True
    models = [config.model, *([adapter_base(Path(config.teacher)) or config.teacher] if config.teacher else [])]
    try:
        return any("quantization_config" in read_config(model) for model in models)
    except UserError:  # on the hub
        return True
