"""Keys and defaults of other projects' scripts with arguments much like trl's, and keys of PEFT's adapter_config.json."""

import re

from training.foreign.entries import Answer, Table, Values, is_off, read
from training.foreign.trainer_keys import COMMAND, SHARED
from training.foreign.trl import TRL, defaults, method, task_of, trains_adapter

_KEYS = read("project_scripts")
SCRIPT: Table = {**TRL, **_KEYS.rules}
"""Keys of Python scripts: the arguments of their calls."""
FIREFLY: Table = {
    **TRL,
    "train_mode": lambda value, values: method(
        value, values | {"use_peft": value != "full", "load_in_4bit": value == "qlora"}
    ),
    "task_type": lambda value, _: Answer({"task": {"pretrain": "pretraining", "dpo": "dpo"}.get(str(value), "sft")}),
}
ADAPTER: Table = {
    **read("adapter", SHARED).rules,
    "peft_type": lambda value, _: Answer({"method": str(value).lower()}),
}
FILES = frozenset(_KEYS.tables["files"])
EVAL_FILES = frozenset(_KEYS.tables["eval_files"])


def qlora_or_trainer(values: Values) -> Values:
    """What qlora.py, or else trl or transformers, use for missing keys."""
    return (
        _KEYS.tables["qlora"] | {"use_peft": None}
        if re.search(r"(^|/)qlora\.py$", str(values.get(COMMAND)))
        else defaults(values)
    )


def script_defaults(values: Values) -> Values:
    """What a Python script's calls use for missing arguments."""
    own = defaults(values)
    adapter = trains_adapter(values)
    if "Unsloth" not in str(values.get(COMMAND)):
        return own | ({"lora_r": 8, "lora_alpha": 8, "lora_dropout": 0.0} if adapter else {})
    length: Values = {} if "max_length" in values else {"max_seq_length": 2048}
    own |= {"load_in_4bit": True, "use_bnb_nested_quant": True} | length
    own |= _KEYS.tables["unsloth"] if adapter else {}
    return own


def firefly_defaults(values: Values) -> Values:
    """What Firefly uses for missing keys."""
    mode = values.get("train_mode", "qlora")
    own: Values = {"train_mode": "qlora", "test_split_size": 0, "learning_rate": 5e-5, "per_device_train_batch_size": 8,
                   "warmup_ratio": 0.0, "save_steps": 500, "logging_steps": 500}  # fmt: skip
    lora: Values = {"lora_rank": 64, "lora_alpha": 16, "lora_dropout": 0.05, "target_modules": "all"}
    return own | (lora if mode != "full" else {})


def medicalgpt_defaults(values: Values) -> Values:
    """What MedicalGPT's scripts use for missing keys; those of preferences have arguments of their own."""
    task = task_of(values)
    common: Values = _KEYS.tables["medicalgpt"] | {"warmup_ratio": 0.0, "logging_steps": 500, "save_steps": 500}
    held_out = {"validation_split_percentage": 0 if any(not is_off(values.get(key)) for key in EVAL_FILES) else 1}
    if task in ("dpo", "orpo"):
        of_task: Values = {
            "per_device_train_batch_size": 4, "gradient_accumulation_steps": 4, "learning_rate": 5e-4, "lora_alpha": 16,
            "lr_scheduler_type": "cosine", "warmup_steps": 100, "weight_decay": 0.05, "gradient_checkpointing": True,
            "max_source_length": 2048, "max_target_length": 512, "save_steps": 50,
        }  # fmt: skip
        return common | held_out | of_task
    length: Values = {
        "reward": {"max_source_length": 2048, "max_target_length": 512},
        "pretraining": {"block_size": 1024, "packing": True},
    }.get(task, {"model_max_length": 512})
    return common | held_out | length | {"per_device_train_batch_size": 8, "learning_rate": 5e-5, "lora_alpha": 32}
