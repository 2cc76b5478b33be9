"""The programs whose files can be imported, and how a file of each is recognized."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from training.foreign import axolotl, llamafactory, other_programs
from training.foreign.entries import Table, Values
from training.foreign.sharding_files import DEEPSPEED_KEYS, DEEPSPEED_OTHERS, looks_like_deepspeed


@dataclass(frozen=True)
class Program:
    """A program's name, its keys, keys by their beginning, and what it uses where a key is missing."""

    name: str
    recognizes: Callable[[Values], bool]
    table: Table
    prefixes: Table
    defaults: Values


def _has(*some: str, all_of: tuple[str, ...] = ()) -> Callable[[Values], bool]:
    return lambda values: any(name in values for name in some) and all(name in values for name in all_of)


DEEPSPEED = Program(
    "DeepSpeed", looks_like_deepspeed, DEEPSPEED_KEYS, DEEPSPEED_OTHERS, {"zero_optimization": {"stage": 0}}
)
ACCELERATE = Program("accelerate", _has("distributed_type", "compute_environment"), other_programs.ACCELERATE, {}, {})
ADAPTER = Program("PEFT", _has("peft_type"), other_programs.ADAPTER, {}, {})
AXOLOTL = Program(
    "axolotl",
    _has("base_model", "base_model_config"),
    axolotl.TABLE,
    axolotl.PREFIXES,
    axolotl.DEFAULTS,
)
LLAMAFACTORY = Program(
    "LLaMA-Factory",
    _has("finetuning_type", "cutoff_len", "dataset_dir", "lora_rank", "train_dataset", "template"),
    llamafactory.TABLE,
    llamafactory.PREFIXES,
    llamafactory.DEFAULTS,
)
TRL = Program(
    "transformers and trl",
    _has("model_name_or_path", "per_device_train_batch_size", "num_train_epochs", "dataset_name", "lr_scheduler_type"),
    other_programs.TRL,
    {},
    other_programs.TRL_DEFAULTS,
)
PROGRAMS = (DEEPSPEED, ADAPTER, ACCELERATE, AXOLOTL, LLAMAFACTORY, TRL)


def recognized(values: Any) -> Program | None:
    """The program whose configuration the values are; None if they are of none of them."""
    if not isinstance(values, dict):
        return None
    return next((program for program in PROGRAMS if program.recognizes(values)), None)
