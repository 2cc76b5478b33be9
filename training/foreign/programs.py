"""The programs whose files and commands can be imported, and how those of each are recognized."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from training.foreign import (
    axolotl,
    launch_keys,
    llamafactory,
    other_programs,
    oumi,
    project_scripts,
    swift,
    torchtune,
    trl,
)
from training.foreign.entries import Table, Values
from training.foreign.launchers import ACCELERATE as ACCELERATE_LAUNCH
from training.foreign.launchers import DEEPSPEED as DEEPSPEED_LAUNCH
from training.foreign.launchers import TORCHRUN
from training.foreign.sharding_files import DEEPSPEED_KEYS, DEEPSPEED_OTHERS, FSDP_KEYS, looks_like_deepspeed


def _nothing(_: Values) -> Values:
    return {}


def _nothing_is(_: Values) -> bool:
    return False


@dataclass(frozen=True)
class Program:
    """A program's name, its keys, keys by their beginning, and what it uses where a key is missing."""

    name: str
    recognizes: Callable[[Values], bool]
    table: Table
    prefixes: Table = field(default_factory=dict)
    defaults: Callable[[Values], Values] = _nothing
    data: frozenset[str] = frozenset()
    """Keys that name training data."""
    held_out: frozenset[str] = frozenset()
    """Keys that name data for evaluation."""
    commands: str = r"(?!)"
    """A pattern of the commands that read its keys: `trl dpo`, the path of a script or the name of a module."""
    nested: bool = False
    """True if its file has sections; keys have dotted names."""
    divides: bool = False
    """True if one process of it divides the model over several devices, instead of the rows."""


def _has(*some: str, all_of: tuple[str, ...] = ()) -> Callable[[Values], bool]:
    return lambda values: any(name in values for name in some) and all(name in values for name in all_of)


def _only_fsdp(values: Values) -> bool:
    plain = {str(name).removeprefix("fsdp_") for name in values}
    return bool(plain) and plain <= FSDP_KEYS


DEEPSPEED = Program(
    "DeepSpeed", looks_like_deepspeed, DEEPSPEED_KEYS, DEEPSPEED_OTHERS, lambda _: {"zero_optimization": {"stage": 0}}
)
ACCELERATE = Program(
    "accelerate",
    _has("distributed_type", "compute_environment"),
    launch_keys.ACCELERATE,
    launch_keys.ACCELERATE_PREFIXES,
)
ADAPTER = Program(
    "PEFT", lambda values: "peft_type" in values and "model_name_or_path" not in values, other_programs.ADAPTER
)
FSDP = Program("FSDP", _only_fsdp, other_programs.FSDP)
AXOLOTL = Program(
    "axolotl",
    _has("base_model", "base_model_config"),
    axolotl.TABLE,
    axolotl.PREFIXES,
    axolotl.defaults,
    frozenset(("datasets",)),
    frozenset(("test_datasets",)),
    r"^axolotl train|axolotl[/.]cli[/.]train|axolotl/scripts/finetune",
)
LLAMAFACTORY = Program(
    "LLaMA-Factory",
    lambda values: (
        _has("finetuning_type", "cutoff_len", "train_dataset", "pref_loss")(values)
        or (_has("dataset", "stage")(values) and _has("template", "lora_target", "dataset_dir")(values))
        or _has("template", "dataset_dir", all_of=("model_name_or_path", "template"))(values)
    ),
    llamafactory.TABLE,
    llamafactory.PREFIXES,
    llamafactory.defaults,
    frozenset(("dataset", "train_dataset")),
    frozenset(("eval_dataset",)),
    r"^(llamafactory-cli|lmf) train|llamafactory[/.](train|launcher|cli)|(^|/)train_bash\.py",
)
SWIFT = Program(
    "ms-swift",
    _has(*swift.OWN_KEYS),
    swift.TABLE,
    swift.PREFIXES,
    swift.defaults,
    frozenset(("dataset",)),
    frozenset(("val_dataset",)),
    r"^swift (sft|pt|rlhf)|swift[/.]cli[/.](sft|rlhf|pt)|(^|/)llm_(sft|dpo|pt)\.py",
    divides=True,
)
TORCHTUNE = Program(
    "torchtune",
    torchtune.recognizes,
    torchtune.TABLE,
    torchtune.PREFIXES,
    torchtune.defaults,
    nested=True,
    commands=r"^tune run|(full|lora|qat|knowledge_distillation|ppo)_\w*(distributed|single_device)(\.py)?$",
)
OUMI = Program(
    "Oumi",
    oumi.recognizes,
    oumi.TABLE,
    oumi.PREFIXES,
    oumi.defaults,
    nested=True,
    commands=r"^oumi (train|distributed)",
    divides=True,
)
FIREFLY = Program(
    "Firefly",
    _has("train_mode", "template_name", all_of=("train_file", "max_seq_length")),
    project_scripts.FIREFLY,
    {},
    project_scripts.firefly_defaults,
    project_scripts.FILES,
    project_scripts.EVAL_FILES,
)
MEDICALGPT = Program(
    "MedicalGPT",
    lambda values: (
        "train_file_dir" in values
        and bool({"validation_file_dir", "tool_format", "template_name", "target_modules"} & values.keys())
    ),
    trl.TRL,
    {},
    project_scripts.medicalgpt_defaults,
    project_scripts.FILES,
    project_scripts.EVAL_FILES,
    divides=True,
)
TRL = Program(
    "transformers and trl",
    _has(
        "model_name_or_path",
        "model_id",
        "per_device_train_batch_size",
        "num_train_epochs",
        "dataset_name",
        "lr_scheduler_type",
    ),
    trl.TRL,
    {},
    project_scripts.qlora_or_trainer,
    project_scripts.FILES,
    project_scripts.EVAL_FILES,
    r"^trl (?!env|vllm|chat|merge)|(^|[/.])trl[/.]scripts[/.]",
)
SCRIPT = replace(
    TRL,
    recognizes=_nothing_is,
    table=project_scripts.SCRIPT,
    defaults=project_scripts.script_defaults,
    commands=r"(?!)",
)
UNSLOTH = replace(SCRIPT, name="Unsloth")
"""Python scripts, whose calls give the keys."""
PROGRAMS = (
    *(TORCHTUNE, OUMI, DEEPSPEED, ADAPTER, ACCELERATE, FSDP, AXOLOTL),
    *(LLAMAFACTORY, SWIFT, FIREFLY, MEDICALGPT, TRL, UNSLOTH),
)

BY_FLAGS = (LLAMAFACTORY, SWIFT, FIREFLY, MEDICALGPT, TRL)
"""Programs of which a script's flags alone are recognized."""
LAUNCHERS = {
    ACCELERATE_LAUNCH: Program(
        ACCELERATE_LAUNCH, _nothing_is, launch_keys.ACCELERATE, launch_keys.OTHERS, lambda _: {"num_processes": None}
    ),
    TORCHRUN: Program(TORCHRUN, _nothing_is, launch_keys.TORCHRUN, launch_keys.OTHERS, lambda _: {"nproc_per_node": 1}),
    DEEPSPEED_LAUNCH: Program(
        DEEPSPEED_LAUNCH, _nothing_is, launch_keys.DEEPSPEED, launch_keys.OTHERS, lambda _: {"num_gpus": None}
    ),
}
"""Launchers by name; other programs start their processes by themselves."""
BY_ITSELF = Program("", _nothing_is, launch_keys.BY_ITSELF, launch_keys.OTHERS)
ONE_PROCESS = Program("", _nothing_is, launch_keys.ONE_PROCESS, launch_keys.OTHERS)
COMMANDS = frozenset(
    ("trl", "swift", "llamafactory-cli", "lmf", "axolotl", "tune", "oumi", "litgpt", "xtuner", "autotrain", "megatron")
)
"""Commands, besides Python and launchers, that start a training."""


def recognized(values: Any) -> Program | None:
    """The program whose configuration the values are; None if they are of none of them."""
    if not isinstance(values, dict):
        return None
    return next((program for program in PROGRAMS if program.recognizes(values)), None)


def of_command(command: str) -> Program | None:
    """The program that reads the arguments of a command; None if the command does not say it."""
    return next((program for program in PROGRAMS if re.search(program.commands, command)), None)
