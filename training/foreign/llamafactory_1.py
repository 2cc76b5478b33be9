"""Keys and defaults of LLaMA-Factory 1 (`USE_V1`), where they differ from those of version 0."""

from typing import Any

from training.foreign.entries import IS_EMPTY, Answer, Table, Values, is_off, is_on, names
from training.foreign.trainer_keys import adapter

DEFAULTS_OF_0 = frozenset({
    "lora_target", "lora_rank", "lora_alpha", "disable_gradient_checkpointing", "per_device_train_batch_size",
    "lr_scheduler_type", "warmup_ratio",
})  # fmt: skip
"""Keys of version 0 whose defaults version 1 has under other names."""
_MUON: Values = {"wd": 0.1, "momentum": 0.95, "adamw_betas": [0.9, 0.95], "adamw_eps": 1e-8}


def is_version_1(values: Values) -> bool:
    """True for the keys of version 1, which names the model `model`."""
    return "model" in values and "model_name_or_path" not in values


def defaults_of_1(values: Values) -> Values:
    """What version 1 uses for missing keys: all weights, AdamW of torch, a constant rate."""
    own: Values = {
        "peft_config": None, "micro_batch_size": 1, "learning_rate": 1e-4, "lr_scheduler_config": None, "bf16": True,
        "enable_activation_checkpointing": True, "logging_steps": 1, "save_steps": 0, "optim_config": None,
    }  # fmt: skip
    return own | ({"save_steps": None} if values.get("save_epochs") else {})


def _peft(value: Any, values: Values) -> Answer:
    if not isinstance(value, dict):
        return Answer({"method": "full"})
    if value.get("name") == "freeze":
        return Answer({"method": "full", "trainable_layers": value.get("freeze_trainable_layers") or 2})
    modules = value.get("target_modules", "all")
    given = {
        "lora_r": value.get("r", 8),
        "lora_alpha": value.get("lora_alpha", 16),
        "lora_dropout": value.get("lora_dropout", 0.05),
        "target_modules": None if is_off(modules) else names(modules).replace("all", "all-linear"),
        "use_rslora": is_on(value.get("use_rslora")) or None,
        "use_dora": is_on(value.get("use_dora")) or None,
        "modules_to_save": names(value["modules_to_save"]) if value.get("modules_to_save") else None,
        "init_adapter": value.get("adapter_name_or_path"),
    }
    settings = adapter(_bits(values.get("quant_config"))) | {
        name: one for name, one in given.items() if one is not None
    }
    return Answer(settings)


def _bits(section: Any) -> int | None:
    """The bits of quant_config; its kind auto quantizes only with them."""
    if not isinstance(section, dict):
        return None
    bits = section.get("quantization_bit") or (4 if section.get("name") == "bnb" else None)
    return bits if bits in (4, 8) else None


def _quantized(value: Any, _: Values) -> Answer:
    bits = _bits(value)
    if bits is None:
        return Answer({}, "quantizes nothing without quantization_bit.")
    return Answer({"quantization": f"{bits}bit"} | {"double_quantization": value.get("double_quantization", True)})


def _distributed(value: Any, _: Values) -> Answer:
    name = str(value.get("name", "")) if isinstance(value, dict) else ""
    if name.startswith("fsdp"):
        return Answer({"strategy": "fsdp"})
    if name == "deepspeed":
        return Answer({"strategy": "zero3" if "3" in str(value.get("config_file", "")) else "zero2"})
    return IS_EMPTY if is_off(value) else Answer(None, "Lathe has ddp, ZeRO and FSDP.")


def _optimizer(value: Any, _: Values) -> Answer:
    if is_off(value):
        return Answer({"optimizer": "adamw", "weight_decay": 0.01})
    if not isinstance(value, dict) or value.get("name") != "muon":
        return Answer(None, "Lathe reads muon; set optimizer.")
    muon = _MUON | value
    betas = muon["adamw_betas"]
    settings = {
        "optimizer": "muon",
        "weight_decay": muon["wd"],
        "momentum": muon["momentum"],
        "adam_epsilon": muon["adamw_eps"],
    }
    return Answer(
        settings | (dict(zip(("adam_beta1", "adam_beta2"), betas, strict=False)) if isinstance(betas, list) else {})
    )


def _whole_batch(value: Any, values: Values) -> Answer:
    """global_batch_size: the rows of a step of all processes."""
    size = values.get("micro_batch_size", 1)
    if not is_version_1(values):
        return Answer({}, "is not read by version 0: gradient_accumulation_steps says this.")
    if value is None or not isinstance(value, int) or not isinstance(size, int) or size < 1:
        return IS_EMPTY
    count = values.get("dp_size") or values.get("num_processes") or 1
    rows = size * count if isinstance(count, int) else size
    note = "" if rows > size else "on one process; on more, divide gradient_accumulation_steps by their number."
    return Answer({"gradient_accumulation_steps": max(1, value // rows)}, note)


FIRST: Table = {
    "peft_config": _peft,
    "quant_config": _quantized,
    "dist_config": _distributed,
    "optim_config": _optimizer,
    "global_batch_size": _whole_batch,
}
"""Keys that only version 1 has."""
