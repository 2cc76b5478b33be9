"""LoRA initializations: PiSSA and OLoRA, which take their first matrices from the model's weights, and LoftQ.

With PiSSA and OLoRA training starts from the weights W - s B0 A0. The first matrices A0 and B0 are saved: a resumed run
subtracts exactly the same ones, and the exported adapter, a LoRA of twice the rank with s (B A - B0 A0), fits the original model.
"""

import json
import os
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
from peft.tuners.lora import LoraLayer
from peft.utils.integrations import dequantize_module_weight
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from training.config.choices import LoraInit
from training.config.continued_adapter import differing
from training.errors import UserError
from training.files import whole_folder

_FOLDER = "initial_adapter"
_WEIGHTS, _CONFIG = "adapter_model.safetensors", "adapter_config.json"


def initial_dir(run_dir: Path) -> Path:
    """Returns the folder of the first weights of a run's adapter."""
    return run_dir / _FOLDER


def peft_init(init: LoraInit) -> bool | str:
    """Returns PEFT's `init_lora_weights`. LoftQ starts from plain LoRA; `apply_loftq` sets its matrices."""
    return True if init in (LoraInit.DEFAULT, LoraInit.LOFTQ) else init.value


@torch.no_grad()
def apply_loftq(model: PeftModel, unquantized: torch.nn.Module) -> None:
    """LoftQ: sets the matrices to the best low-rank fit of the quantization error against the weights in `unquantized`.

    PEFT's implementation needs a GPU and ignores LoRA's scale.
    """
    for name, layer in model.get_base_model().named_modules():
        if not isinstance(layer, LoraLayer) or "default" not in layer.lora_A:
            continue
        rounded = dequantize_module_weight(layer.get_base_layer()).to(torch.float32)
        error = unquantized.get_submodule(name).weight.to(rounded.device, torch.float32) - rounded
        left, values, right = torch.linalg.svd(error, full_matrices=False)
        root = (values / layer.scaling["default"]).sqrt()[: layer.r["default"]]
        _set(layer.lora_A["default"].weight, root[:, None] * right[: len(root)])
        _set(layer.lora_B["default"].weight, left[:, : len(root)] * root)


def continue_adapter(model: PeftModel, folder: Path) -> None:
    """Sets the adapter's weights to those saved in a folder.

    Raises:
        UserError: the folder's tensors are not those of this adapter.
    """
    try:
        tensors = load_file(folder / _WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise UserError(
            "init_adapter", str(folder), f"cannot be read: {error}.", f"Give a folder with {_WEIGHTS}."
        ) from None
    _check_fields(model, folder)
    own = get_peft_model_state_dict(model)
    names = sorted(own.keys() ^ tensors.keys()) or [name for name in own if own[name].shape != tensors[name].shape]
    if names:
        fix = "Set lora_r, target_modules and modules_to_save to those of the adapter, and model to its base model."
        raise UserError("init_adapter", str(folder), f"does not fit the run's adapter: {names[0]} differs.", fix)
    set_peft_model_state_dict(model, tensors)


def _check_fields(model: PeftModel, folder: Path) -> None:
    """Checks that PEFT computes the same with the weights in a folder as where they were saved, such as by their scale.

    Raises:
        UserError: it does not.
    """
    stored = folder / _CONFIG
    saved = json.loads(stored.read_text(encoding="utf-8")) if stored.is_file() else {}
    if different := differing(model.active_peft_config.to_dict(), saved):
        written = ", ".join(f"{name} {value}" for name, value in different.items())
        message = f"has {written}, and the run's adapter has other values."
        raise UserError("init_adapter", str(folder), message, "Set the method's settings and method_options to these.")


def save_initial(model: PeftModel, folder: Path) -> None:
    """Saves the first matrices atomically, on rank 0."""
    if int(os.environ.get("RANK", "0")):
        return
    tensors = {name: tensor.contiguous() for name, tensor in get_peft_model_state_dict(model).items()}
    with whole_folder(folder) as partial:
        partial.mkdir(parents=True)
        save_file(tensors, partial / _WEIGHTS)


@torch.no_grad()
def restore_initial(model: PeftModel, folder: Path) -> None:
    """Loads the first matrices into the adapter of an original model and subtracts them from its weights, as PEFT does."""
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


def export_plain_lora(result: Path, run_dir: Path) -> None:
    """Converts the adapter in `result` to a LoRA for the original model, if its initialization had changed the weights."""
    initial_file = initial_dir(run_dir) / _WEIGHTS
    if not initial_file.is_file():
        return
    initial, trained = load_file(initial_file), load_file(result / _WEIGHTS)
    path = result / _CONFIG
    config = json.loads(path.read_text(encoding="utf-8"))
    # rsLoRA divides by the root of the rank: alpha would become a fraction, which no setting takes.
    factor = 2**0.5 if config["use_rslora"] else 1.0
    for name, tensor in trained.items():
        if ".lora_A." in name:
            trained[name] = torch.cat([tensor, initial[name].to(tensor.dtype)], dim=0)
        elif ".lora_B." in name:
            trained[name] = torch.cat([tensor, -initial[name].to(tensor.dtype)], dim=1) * factor
    save_file(
        {name: tensor.contiguous() for name, tensor in trained.items()}, result / _WEIGHTS, metadata={"format": "pt"}
    )
    path.write_text(json.dumps(_config_of_twice_the_rank(config), indent=2), encoding="utf-8")


def _config_of_twice_the_rank(config: dict[str, Any]) -> dict[str, Any]:
    """Returns `config` with twice the rank and, except with rsLoRA, twice the alpha, so that alpha / r stays."""
    factor = 1 if config["use_rslora"] else 2
    patterns = {
        "rank_pattern": {key: 2 * rank for key, rank in config["rank_pattern"].items()},
        "alpha_pattern": {key: factor * value for key, value in config["alpha_pattern"].items()},
    }
    doubled = {"r": 2 * config["r"], "lora_alpha": factor * config["lora_alpha"], "init_lora_weights": True}
    return config | doubled | patterns
