"""Writes a LoRA adapter as GGUF, which llama.cpp applies to its base model: `python -m training.results.gguf.adapter RUN FILE`.

RUN is a run's folder. llama.cpp multiplies the second factor by alpha / rank.
"""

import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import torch
from peft import PeftConfig
from safetensors.torch import load_file
from transformers import AutoConfig, PretrainedConfig

from training.config.run_config import RunConfig
from training.model_info.folder import check_weights
from training.ranks.stopping import die_with_parent
from training.results.gguf.architectures import Architecture, architecture_of, refusal
from training.results.gguf.convert import Names, gguf_file
from training.results.progress import exit_status
from training.run_folder.paths import CONFIG_FILE, result_dir

_FIX = "Export the merged model instead (--gguf without --adapter)."
_FACTOR = re.compile(r"^base_model\.model\.(?P<module>.+)\.lora_(?P<factor>[AB])\.weight$")
_WEIGHTS = "adapter_model.safetensors"


def convert_adapter(folder: Path, base: PretrainedConfig, target: Path) -> None:
    """Writes the adapter in `folder` to `target` atomically; `base` is the configuration of its base model. Raises UserError if
    llama.cpp cannot apply an adapter of this kind, and OSError if the disk is full."""
    architecture, text = architecture_of(base), base.get_text_config()
    check_weights(folder, "adapter", str(folder))
    settings: Any = PeftConfig.from_pretrained(str(folder))
    _check(settings)
    with gguf_file(target, architecture) as writer:
        writer.add_type(gguf.GGUFType.ADAPTER)
        writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
        writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, float(settings.lora_alpha))
        for name, tensor in _factors(load_file(folder / _WEIGHTS), settings, architecture, text):
            writer.add_tensor(name, tensor.float().contiguous().numpy())
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()


def _check(settings: Any) -> None:
    if settings.peft_type != "LORA" or settings.use_dora:
        kind = "DoRA" if settings.peft_type == "LORA" else settings.peft_type
        raise refusal(str(kind), "is a kind of adapter that llama.cpp does not have; it has LoRA.", _FIX)
    if settings.modules_to_save:
        raise refusal(", ".join(settings.modules_to_save), "is trained in full beside the adapter.", _FIX)


def _factors(
    weights: dict[str, torch.Tensor], settings: Any, architecture: Architecture, config: Any
) -> Iterator[tuple[str, torch.Tensor]]:
    """Names and tensors of the factors: A (rank, in features), B (out features, rank)."""
    names = Names(config, architecture)
    for name, tensor in weights.items():
        match = _FACTOR.match(name)
        if match is None:
            raise refusal(name, "is not a factor of a linear layer, so llama.cpp cannot apply it.", _FIX)
        weight = f"{match['module']}.weight"
        if match["factor"] == "A":
            yield f"{names.of(weight)}.lora_a", tensor
        else:
            scaled = tensor.float() * _factor(match["module"], tensor.shape[1], settings)
            yield f"{names.of(weight)}.lora_b", architecture.rows(weight, scaled, config)


def _factor(module: str, rank: int, settings: Any) -> float:
    """By what PEFT's scaling of a module differs from the adapter's alpha / rank: rsLoRA, or an alpha of the module's own."""
    patterns = (settings.alpha_pattern or {}).items()  # the first that matches the name counts
    own = (value for pattern, value in patterns if re.match(rf"(.*\.)?({pattern})$", module))
    alpha = next(own, settings.lora_alpha)
    scaling = alpha / math.sqrt(rank) if settings.use_rslora else alpha / rank
    return float(scaling / (settings.lora_alpha / rank))


@exit_status
def main(run_dir: Path, target: Path) -> None:
    """Converts the adapter of a run."""
    run = RunConfig.model_validate_json((run_dir / CONFIG_FILE).read_text(encoding="utf-8"))
    base = AutoConfig.from_pretrained(run.model, revision=run.revision or "main", trust_remote_code=False)
    convert_adapter(result_dir(run_dir, adapts=True), base, target)


if __name__ == "__main__":
    die_with_parent()
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
