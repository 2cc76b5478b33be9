"""How LoRA begins: PiSSA and OLoRA, which take their first matrices out of the model's own weights, and LoftQ.

With PiSSA and OLoRA the weights that training starts from are W - s B0 A0. The first matrices are kept, so that a resumed run
takes off the very same ones, and the adapter that is handed out works on the model as it was: s (B A - B0 A0) is a LoRA of twice
the rank.
"""

import json
import os
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
from peft.tuners.lora import LoraLayer
from peft.utils.integrations import dequantize_module_weight
from safetensors.torch import load_file, save_file

from training.config import LoraInit

_FOLDER = "initial_adapter"
_WEIGHTS, _CONFIG = "adapter_model.safetensors", "adapter_config.json"


def initial_dir(run_dir: Path) -> Path:
    """Where a run keeps the first weights of its adapter."""
    return run_dir / _FOLDER


def peft_word(init: LoraInit) -> bool | str:
    """What PEFT calls the initialisation. LoftQ is made of plain LoRA once the weights are quantised."""
    return True if init in (LoraInit.DEFAULT, LoraInit.LOFTQ) else init.value


@torch.no_grad()
def fit_quantized(model: PeftModel, whole: torch.nn.Module) -> None:
    """LoftQ: the matrices begin as the best low-rank fit to what quantising has lost of the weights in `whole`.

    PEFT's own way needs a GPU, and leaves out LoRA's scale.
    """
    for name, layer in model.get_base_model().named_modules():
        if not isinstance(layer, LoraLayer) or "default" not in layer.lora_A:
            continue
        kept = dequantize_module_weight(layer.get_base_layer()).to(torch.float32)
        lost = whole.get_submodule(name).weight.to(kept.device, torch.float32) - kept
        left, values, right = torch.linalg.svd(lost, full_matrices=False)
        root = (values / layer.scaling["default"]).sqrt()[: layer.r["default"]]
        _set(layer.lora_A["default"].weight, root[:, None] * right[: len(root)])
        _set(layer.lora_B["default"].weight, left[:, : len(root)] * root)


def keep(model: PeftModel, folder: Path) -> None:
    """Writes the first matrices, whole or not at all."""
    if int(os.environ.get("RANK", "0")):
        return
    partial = folder.with_suffix(".partial")
    partial.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.contiguous() for name, tensor in get_peft_model_state_dict(model).items()}
    save_file(tensors, partial / _WEIGHTS)
    partial.rename(folder)


@torch.no_grad()
def begin_again(model: PeftModel, folder: Path) -> None:
    """Puts the first matrices on a model as it was, and takes them off its weights, as PEFT does."""
    set_peft_model_state_dict(model, load_file(folder / _WEIGHTS))
    for layer in model.modules():
        if not isinstance(layer, LoraLayer) or "default" not in layer.lora_A:
            continue
        base = layer.get_base_layer().weight
        weight = base.data.to(torch.float32)
        weight = weight.T if layer.fan_in_fan_out else weight
        weight = weight - layer.scaling["default"] * layer.lora_B["default"].weight @ layer.lora_A["default"].weight
        base.data = (weight.T if layer.fan_in_fan_out else weight).to(base.dtype)


def _set(parameter: torch.nn.Parameter, value: torch.Tensor) -> None:
    parameter.data = value.to(parameter.dtype).contiguous()


def make_plain(result: Path, run_dir: Path) -> None:
    """Turns the adapter in `result` into one for the model as it was, where its initialisation had changed the weights."""
    first = initial_dir(run_dir) / _WEIGHTS
    if not first.is_file():
        return
    begun, trained = load_file(first), load_file(result / _WEIGHTS)
    for name, tensor in trained.items():
        if ".lora_A." in name:
            trained[name] = torch.cat([tensor, begun[name].to(tensor.dtype)], dim=0)
        elif ".lora_B." in name:
            trained[name] = torch.cat([tensor, -begun[name].to(tensor.dtype)], dim=1)
    save_file(
        {name: tensor.contiguous() for name, tensor in trained.items()}, result / _WEIGHTS, metadata={"format": "pt"}
    )
    path = result / _CONFIG
    path.write_text(json.dumps(_doubled(json.loads(path.read_text(encoding="utf-8"))), indent=2), encoding="utf-8")


def _doubled(config: dict[str, Any]) -> dict[str, Any]:
    """The same scale at twice the rank: alpha / r, or alpha / sqrt(r) with rsLoRA."""
    alpha = 2**0.5 if config["use_rslora"] else 2
    patterns = {
        "rank_pattern": {key: 2 * rank for key, rank in config["rank_pattern"].items()},
        "alpha_pattern": {key: alpha * value for key, value in config["alpha_pattern"].items()},
    }
    doubled = {"r": 2 * config["r"], "lora_alpha": alpha * config["lora_alpha"], "init_lora_weights": True}
    return config | doubled | patterns
