"""The programs whose files and commands can be imported, those that are only named, and how each is recognized."""

import re
import tomllib
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any

from training.errors import UserError
from training.foreign import (
    axolotl,
    data_sets,
    launch_keys,
    llamafactory,
    oumi,
    project_scripts,
    sharding,
    swift,
    torchtune,
    trainer_keys,
    trl,
)
from training.foreign.entries import Answer, Table, Values
from training.foreign.launchers import ACCELERATE as ACCELERATE_LAUNCH
from training.foreign.launchers import DEEPSPEED as DEEPSPEED_LAUNCH
from training.foreign.launchers import TORCHRUN

Recognizer = Callable[[Values], bool]


def has(*parts: str) -> Recognizer:
    """True for values with one of the keys of each part: `a|b`. A key `section.key` may be in a section, `section.*` is one."""
    return lambda values: all(any(_has_key(values, key) for key in part.split("|")) for part in parts)


def _has_key(values: Values, key: str) -> bool:
    section, _, name = key.partition(".")
    inner = values.get(section) if name else None
    return key in values or (isinstance(inner, dict) and (name == "*" or name in inner))


def _nothing(_: Values) -> bool:
    return False


@dataclass(frozen=True)
class Program:
    """A program's name, its keys, keys by their beginning, and what it uses where a key is missing."""

    name: str
    recognizes: Recognizer
    table: Table
    _: KW_ONLY
    prefixes: Table = field(default_factory=dict)
    defaults: Callable[[Values], Values] = lambda _: {}
    data: frozenset[str] = frozenset()
    """Keys that name training data."""
    held_out: frozenset[str] = frozenset()
    """Keys that name data for evaluation."""
    datasets: Callable[[Any, Values, Path | None, str], Answer] = data_sets.by_name
    """The answer for such a key: of its value, all values, the folder of the file (None: no file is read) and the setting."""
    commands: str = r"(?!)"
    """A pattern of the commands that read its keys: `trl dpo`, the path of a script or the name of a module."""
    nested: bool = False
    """True if its file has sections; keys have dotted names."""
    divides: bool = False
    """True if one process of it divides the model over several devices, instead of the rows."""


DEEPSPEED = Program(
    "DeepSpeed", sharding.looks_like_deepspeed, sharding.DEEPSPEED,
    prefixes=sharding.DEEPSPEED_OTHERS, defaults=lambda _: {"zero_optimization": {"stage": 0}},
)  # fmt: skip
ACCELERATE = Program(
    "accelerate",
    has("distributed_type|compute_environment"),
    launch_keys.ACCELERATE,
    prefixes=launch_keys.ACCELERATE_PREFIXES,
)
ADAPTER = Program(
    "PEFT",
    lambda values: "peft_type" in values and "model_name_or_path" not in values,
    project_scripts.ADAPTER,
)
FSDP = Program("FSDP", lambda values: bool(values) and values.keys() <= sharding.FSDP.keys(), sharding.FSDP)
AXOLOTL = Program(
    "axolotl",
    has("base_model|base_model_config"),
    axolotl.TABLE,
    prefixes=axolotl.PREFIXES,
    defaults=axolotl.defaults,
    data=frozenset(("datasets",)),
    held_out=frozenset(("test_datasets",)),
    datasets=axolotl.datasets,
    commands=r"^axolotl train|axolotl[/.]cli[/.]train|axolotl/scripts/finetune",
)


def _llamafactory(values: Values) -> bool:
    return (
        has("finetuning_type|cutoff_len|train_dataset|pref_loss")(values)
        or has("dataset|stage", "template|lora_target|dataset_dir")(values)
        or has("model_name_or_path", "template")(values)
    )


LLAMAFACTORY = Program(
    "LLaMA-Factory",
    _llamafactory,
    llamafactory.TABLE,
    prefixes=llamafactory.PREFIXES,
    defaults=llamafactory.defaults,
    data=frozenset(("dataset", "train_dataset")),
    held_out=frozenset(("eval_dataset",)),
    datasets=llamafactory.datasets,
    commands=r"^(llamafactory-cli|lmf) train|llamafactory[/.](train|launcher|cli)|(^|/)train_bash\.py",
)
SWIFT = Program(
    "ms-swift",
    has("|".join(swift.OWN_KEYS)),
    swift.TABLE,
    prefixes=swift.PREFIXES,
    defaults=swift.defaults,
    data=frozenset(("dataset",)),
    held_out=frozenset(("val_dataset",)),
    commands=r"^swift (sft|pt|rlhf)|swift[/.]cli[/.](sft|rlhf|pt)|(^|/)llm_(sft|dpo|pt)\.py",
    divides=True,
)
TORCHTUNE = Program(
    "torchtune",
    torchtune.recognizes,
    torchtune.TABLE,
    prefixes=torchtune.PREFIXES,
    defaults=torchtune.defaults,
    nested=True,
    commands=r"^tune run|(full|lora|qat|knowledge_distillation|ppo)_\w*(distributed|single_device)(\.py)?$",
)
OUMI = Program(
    "Oumi",
    oumi.recognizes,
    oumi.TABLE,
    prefixes=oumi.PREFIXES,
    defaults=oumi.defaults,
    nested=True,
    commands=r"^oumi (train|distributed)",
    divides=True,
)


def _arguments(values: Values) -> bool:
    names = "model_name_or_path|model_id|per_device_train_batch_size|num_train_epochs|lr_scheduler_type"
    return has(names)(values) or ("dataset_name" in values and not trainer_keys.TRAINER.keys().isdisjoint(values))


TRL = Program(
    "transformers and trl",
    _arguments,
    trl.TRL,
    defaults=project_scripts.qlora_or_trainer,
    data=project_scripts.FILES,
    held_out=project_scripts.EVAL_FILES,
    commands=r"^trl (?!env|vllm|chat|merge)|(^|[/.])trl[/.]scripts[/.]",
)
FIREFLY = replace(
    TRL,
    name="Firefly",
    recognizes=has("train_mode|template_name", "train_file", "max_seq_length"),
    table=project_scripts.FIREFLY,
    defaults=project_scripts.firefly_defaults,
    commands=r"(?!)",
)
MEDICALGPT = replace(
    TRL,
    name="MedicalGPT",
    recognizes=has("train_file_dir", "validation_file_dir|tool_format|template_name|target_modules"),
    defaults=project_scripts.medicalgpt_defaults,
    commands=r"(?!)",
    divides=True,
)
SCRIPT = replace(
    TRL, recognizes=_nothing, table=project_scripts.SCRIPT, defaults=project_scripts.script_defaults, commands=r"(?!)"
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
    name: Program(name, _nothing, table, prefixes=launch_keys.OTHERS, defaults=defaults)
    for name, table, defaults in (
        (ACCELERATE_LAUNCH, launch_keys.ACCELERATE, lambda _: {"num_processes": None}),
        (TORCHRUN, launch_keys.TORCHRUN, lambda _: {"nproc_per_node": 1}),
        (DEEPSPEED_LAUNCH, launch_keys.DEEPSPEED, lambda _: {"num_gpus": None}),
    )
}
"""Launchers by name; other programs start their processes by themselves."""
BY_ITSELF = Program("", _nothing, launch_keys.BY_ITSELF, prefixes=launch_keys.OTHERS)
ONE_PROCESS = Program("", _nothing, launch_keys.ONE_PROCESS, prefixes=launch_keys.OTHERS)
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


_NOT_READ = [
    (program["name"], program.get("commands", r"(?!)"), has(*program["has"]))
    for program in tomllib.loads(Path(__file__).with_name("not_read.toml").read_text(encoding="utf-8"))["programs"]
]


def check_is_read(command: str, values: Values, source: str) -> None:
    """Checks that a command or file is of no program that is only recognized.

    Raises:
        UserError: it is; with the program's name.
    """
    for name, pattern, recognizes in _NOT_READ:
        if (command and re.search(pattern, command)) or recognizes(values):
            message = f"is a configuration of {name}, which Lathe does not read."
            fix = "Set model, data and the settings of the run yourself (docs/configuration.md)."
            raise UserError("file", source, message, fix)
