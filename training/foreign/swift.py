"""Arguments of ms-swift (3.x and 4.x): `swift sft`, `swift pt` and `swift rlhf`."""

import math
from typing import Any

from training.config.choices import PreferenceLoss
from training.foreign.entries import IS_EMPTY, Answer, Table, Values, choice, is_off, is_on, names, read
from training.foreign.tasks import known_task
from training.foreign.trainer_keys import COMMAND, SHARED, TRAINER, adapter

_RLHF = {"dpo": "dpo", "orpo": "orpo", "kto": "kto", "rm": "reward"}
_TYPES = {"causal_lm": "sft", "seq_cls": "classification"}
_METHODS = {name: name for name in ("lora", "full", "adalora", "vera", "boft", "fourierft")} | {"bone": "miss"}
_TYPE_KEYS = ("tuner_type", "train_type", "sft_type")
OWN_KEYS = (
    *_TYPE_KEYS, "rlhf_type", "split_dataset_ratio", "lorap_lr_ratio", "attn_impl", "truncation_strategy", "model_id_or_path",
)  # fmt: skip
_SECOND = frozenset(
    ("sft_type", "model_id_or_path", "template_type", "batch_size", "dataset_test_ratio", "custom_train_dataset_path")
)
"""Arguments of ms-swift 2, whose defaults are others."""
_WHOLE_BATCH = 16
"""Rows of a global batch from which ms-swift accumulates no more by itself."""
_KEYS = read("swift", SHARED)
PREFIXES = _KEYS.prefixes
_LOSS = choice("dpo_loss", {name.value: name.value for name in PreferenceLoss}, "sigmoid")


def _task_of(values: Values) -> str:
    """The task. Raises UserError if it is one that Lathe does not train."""
    command = str(values.get(COMMAND, ""))
    if "rlhf_type" in values or "rlhf" in command:
        kind = str(values.get("rlhf_type") or "dpo").lower()
        return known_task(kind, _RLHF, "rlhf_type")
    kind = str(values.get("task_type") or "causal_lm").lower()
    task = known_task(kind.removeprefix("generative_"), _TYPES, "task_type")
    return "pretraining" if command.endswith((" pt", "/pt.py", ".pt")) else task


def _task(_: Any, values: Values) -> Answer:
    return Answer({"task": _task_of(values)})


def _kind(values: Values) -> str:
    return str(next((values[key] for key in _TYPE_KEYS if not is_off(values.get(key))), "lora")).lower()


def _bits(values: Values) -> int | None:
    bits = values.get("quant_bits", values.get("quantization_bit"))
    return bits if bits in (4, 8) else None


def _method(_: Any, values: Values) -> Answer:
    kind = _METHODS.get(_kind(values))
    if kind is None:
        return Answer(None, f"Lathe has {', '.join(_METHODS)}; method stays lora.")
    return Answer(adapter(_bits(values)) if kind == "lora" else {"method": kind})


def _targets(value: Any, _: Values) -> Answer:
    given = names(value)
    if is_off(value) or given.upper() in ("AUTO", "DEFAULT"):
        return IS_EMPTY
    return Answer({"target_modules": "all-linear" if given.upper() in ("ALL", "ALL-LINEAR") else given})


def _loss(value: Any, values: Values) -> Answer:
    if _task_of(values) in ("kto", "orpo") and value in ("kto", "orpo"):
        return Answer({}, "belongs to the task.")
    return _LOSS(value[0] if isinstance(value, list) and len(value) == 1 else value, values)


def _length(value: Any, _: Values) -> Answer:
    if value:
        return Answer({"max_length": value})
    return Answer(None, "means the longest sequence of the model; set max_length.")


def _dtype(value: Any, values: Values) -> Answer:
    """torch_dtype, with which ms-swift computes: in fp16 for weights of float16 and float32."""
    precision = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp16"}.get(str(value))
    if precision is None or any(values.get(key) is not None for key in ("bf16", "fp16")):
        return SHARED["torch_dtype"](value, values)
    return Answer((SHARED["torch_dtype"](value, values).settings or {}) | {"precision": precision})


def _quantized(_: Any, values: Values) -> Answer:
    bits = _bits(values)
    return Answer({"quantization": f"{bits}bit"} if bits else None, "" if bits else "bitsandbytes has 4 and 8 bits.")


def _adapters(value: Any, _: Values) -> Answer:
    paths = value if isinstance(value, list) else [value]
    return Answer({"init_adapter": paths[0]}) if len(paths) == 1 else Answer(None, "Lathe continues one.")


def defaults(values: Values) -> Values:
    """What ms-swift uses if a key is missing. `num_processes` is the launcher's: it accumulates up to 16 rows."""
    size, count = values.get("per_device_train_batch_size", 1), values.get("num_processes", 1)
    rows = size * count if isinstance(size, int) and isinstance(count, int) and size > 0 and count > 0 else _WHOLE_BATCH
    own: Values = {
        **_KEYS.defaults,
        "gradient_accumulation_steps": max(1, math.ceil(_WHOLE_BATCH / rows)),
        "learning_rate": 1e-5 if _kind(values) == "full" else 1e-4,
        "max_length": None,
    }
    if not set(_TYPE_KEYS) & values.keys():
        own["tuner_type"] = "lora"
    if _SECOND & values.keys():
        held_out = {} if values.get("val_dataset") else {"split_dataset_ratio": 0.01}
        own |= {"max_length": 2048, "warmup_ratio": 0.05} | held_out
    if _kind(values) == "lora":
        own |= {"lora_rank": 8, "lora_alpha": 32, "lora_dropout": 0.05, "target_modules": "all-linear"}
    return own


TABLE: Table = {
    **TRAINER,
    **_KEYS.rules,
    **dict.fromkeys((COMMAND, "rlhf_type", "task_type"), _task),
    **dict.fromkeys(_TYPE_KEYS, _method),
    "attn_impl": lambda value, values: SHARED["attn_implementation"](
        "flash_attention_2" if str(value).lower() == "flash_attn" else value, values
    ),
    "max_length": _length,
    "padding_free": lambda value, values: (
        Answer({}, "packing says this.")
        if is_on(values.get("packing"))
        else Answer({"packing": "padding_free"} if is_on(value) else {})
    ),
    "torch_dtype": _dtype,
    "dtype": _dtype,
    "target_modules": _targets,
    "lora_target_modules": _targets,
    "quant_bits": _quantized,
    "quantization_bit": _quantized,
    "loss_type": _loss,
    "adapters": _adapters,
}
