"""Programs whose configurations are recognized and named, but not read."""

import re
from collections.abc import Callable

from training.errors import UserError
from training.foreign.entries import Values


def _keys(*needed: str) -> Callable[[Values], bool]:
    return lambda values: all(name in values for name in needed)


def _section(name: str, *keys: str) -> Callable[[Values], bool]:
    """True if a section has one of the keys."""
    return lambda values: isinstance(values.get(name), dict) and any(key in values[name] for key in keys)


def _any(*some: str) -> Callable[[Values], bool]:
    return lambda values: any(name in values for name in some)


_PROGRAMS: tuple[tuple[str, str, Callable[[Values], bool]], ...] = (
    (
        "LitGPT",
        r"^litgpt |litgpt[/.]",
        lambda values: "checkpoint_dir" in values and isinstance(values.get("train"), dict),
    ),
    ("xtuner", r"^xtuner |xtuner[/.]", _keys("pretrained_model_name_or_path", "accumulative_counts")),
    ("NeMo", r"nemo[/._]|megatron_gpt_\w*finetuning", _section("trainer", "devices", "num_nodes")),
    ("NeMo", r"(?!)", _any("exp_manager", "trainer.devices")),
    ("OpenRLHF", r"openrlhf[/.]", _keys("pretrain", "micro_train_batch_size")),
    ("verl", r"verl[/.]", _section("data", "micro_batch_size_per_gpu", "max_prompt_length")),
    ("verl", r"(?!)", _any("actor_rollout_ref", "actor_rollout_ref.model.path", "data.micro_batch_size_per_gpu")),
    (
        "Megatron-LM",
        r"pretrain_gpt\.py|finetune_gpt\.py|megatron[/.]|^megatron ",
        _keys("tensor_model_parallel_size", "num_layers"),
    ),
    ("Megatron-SWIFT", r"(?!)", _keys("micro_batch_size", "global_batch_size")),
    ("torchtitan", r"torchtitan[/.]", _section("job", "dump_folder")),
    ("DeepSpeed-Chat", r"(?i)deepspeed-?chat", _any("sft_only_data_path", "data_output_path")),
    ("AutoTrain", r"^autotrain ", _keys("base_model", "backend", "task")),
    ("MLX", r"mlx_lm", _keys("lora_parameters")),
    ("H2O LLM Studio", r"llm_studio[/.]", _keys("llm_backbone")),
    ("Ludwig", r"^ludwig ", _keys("input_features", "output_features")),
    ("LMFlow", r"lmflow[/.]", _any("lmflow_version")),
    ("LLM Foundry", r"llmfoundry[/.]|^composer ", _any("device_train_microbatch_size", "max_duration")),
    ("diffusers", r"train_(dreambooth|text_to_image|controlnet)", _any("instance_data_dir", "instance_prompt")),
    ("FlagEmbedding", r"FlagEmbedding[/.]", _keys("train_group_size")),
)
"""By name: a pattern of commands, and what a file has."""


def check(command: str, values: Values, given: str) -> None:
    """Checks that a command or file is of no program that is only recognized.

    Raises:
        UserError: it is; with the program's name.
    """
    for name, pattern, recognizes in _PROGRAMS:
        if (command and re.search(pattern, command)) or recognizes(values):
            message = f"is a configuration of {name}, which Lathe does not read."
            raise UserError(
                "file", given, message, "Set model, data and the settings of the run yourself (docs/configuration.md)."
            )
