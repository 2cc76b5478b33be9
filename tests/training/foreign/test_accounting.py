"""Whatever the keys of a file are: each is accounted for once, what an entry gives counts, and their order decides nothing."""

from random import Random

import pytest
import yaml
from subtest_table import table

from training.errors import UserError
from training.foreign.entries import Outcome
from training.foreign.programs import PROGRAMS
from training.foreign.translate import import_text, together

_STARTS = {
    "DeepSpeed": {"zero_optimization": {"stage": 2}}, "accelerate": {"distributed_type": "NO"}, "PEFT": {"peft_type": "LORA"},
    "axolotl": {"base_model": "m"}, "LLaMA-Factory": {"finetuning_type": "lora"}, "FSDP": {"fsdp_offload_params": True},
    "transformers and trl": {"model_name_or_path": "m"}, "ms-swift": {"tuner_type": "lora"},
    "MedicalGPT": {"tool_format": "default", "train_file_dir": "d"},
    "Oumi": {"model.model_name": "m"}, "torchtune": {"model._component_": "lora_llama3_8b"},
    "Firefly": {"train_mode": "lora", "train_file": "d", "max_seq_length": 8},
}  # fmt: skip
_VALUES = (
    True, False, None, 0, 1, 2, 4, 0.1, 0.5, 50, "4", "1e-4", "auto", "no", "steps", "epoch", "bfloat16", "float16", "full",
    "full_shard auto_wrap offload", "cosine", "adamw_torch", ["q_proj", "v_proj"], {"stage": 3}, {"activation_checkpointing": True},
)  # fmt: skip


def drawn(program, seed):
    """A file with about a third of a program's keys, and values that any of them may have."""
    random = Random(f"{program.name} {seed}")
    keys = sorted({*program.table, *(() if program.name == "FSDP" else ("fsdp", "fsdp_config"))})
    chosen = random.sample(keys, max(1, len(keys) // 3))
    return {key: random.choice(_VALUES) for key in chosen if "." in key or not program.nested} | _STARTS[
        program.name
    ], random


def imported(values):
    return import_text(yaml.safe_dump(values, sort_keys=False), None)


@table("program", [program for program in PROGRAMS if program.name in _STARTS])
@pytest.mark.slow
def test_any_keys_are_accounted_for_in_any_order(program):
    read = 0
    for seed in range(12):
        values, random = drawn(program, seed)
        shuffled = dict(random.sample(list(values.items()), len(values)))
        try:
            result = imported(values)
        except UserError:
            with pytest.raises(UserError):
                imported(shuffled)
            continue
        read += 1
        assert imported(shuffled).settings == result.settings
        named = [entry.key for entry in result.entries if entry.value is not None]
        assert sorted(key for key in named if key in values) == sorted(key for key in values if values[key] is not None)
        assert values.keys() <= {entry.key for entry in result.entries}
        assert all(result.settings[name] == given for entry in result.entries for name, given in entry.settings.items())
    assert read


@table(
    ("values", "expected"),
    [
        ({"base_model": "m", "bf16": False, "fp16": True}, {"precision": "fp16"}),
        ({"base_model": "m", "bf16": "auto", "fp16": True}, {"precision": "fp16"}),
        ({"base_model": "m", "bf16": False, "fp16": False}, {"precision": "fp32"}),
        ({"model_name_or_path": "m", "fp16": True, "bf16": False}, {"precision": "fp16"}),
        ({"model_name_or_path": "m", "bf16": False, "torch_dtype": "bfloat16"}, {"precision": "bf16"}),
        (
            {"base_model": "m", "adapter": "lora", "lora_target_linear": True, "lora_target_modules": ["q_proj"]},
            {"target_modules": "all-linear"},
        ),
        ({"base_model": "m", "save_steps": 50, "save_strategy": "no"}, {"save_steps": 50}),
        ({"model_name_or_path": "m", "eval_steps": 50, "eval_strategy": "no"}, {"eval_steps": 0}),
        (
            {"base_model": "m", "gradient_checkpointing": False, "fsdp_config": {"activation_checkpointing": True}},
            {"gradient_checkpointing": "full"},
        ),
        ({"distributed_type": "NO", "num_processes": 8}, {"strategy": "single", "num_processes": 1}),
        ({"distributed_type": "MULTI_GPU", "fsdp_config": {"fsdp_offload_params": True}}, {"offload_param": "none"}),
        ({"distributed_type": "FSDP", "fsdp_config": {"fsdp_offload_params": True}}, {"offload_param": "cpu"}),
        ({"distributed_type": "NO", "deepspeed_config": {"zero_stage": 3}}, {"strategy": "single"}),
        (
            {"distributed_type": "NO", "parallelism_config": {"parallelism_config_sp_size": 2}},
            {"sequence_parallel_size": 2},
        ),
        ({"model_name_or_path": "m", "packing": True, "padding_free": True}, {"packing": "packed"}),
        ({"tuner_type": "lora", "packing": True, "padding_free": True}, {"packing": "packed"}),
        ({"model_name_or_path": "m", "max_seq_length": 4096, "max_length": 1024}, {"max_length": 1024}),
        (
            {"finetuning_type": "lora", "quantization_bit": "4", "max_steps": "1e3"},
            {"quantization": "4bit", "max_steps": 1000},
        ),
        ({"finetuning_type": "lora", "run_name": "007"}, {"name": "007"}),
    ],
)
def test_keys_that_decide_together_do_so_in_any_order(values, expected):
    for ordered in (values, dict(reversed(values.items()))):
        config = imported(ordered).config()
        assert {name: getattr(config, name) for name in expected} == expected


def test_what_another_file_overrides_is_named_with_the_key_that_counts():
    first = imported({"model_name_or_path": "m", "learning_rate": 1e-4, "per_device_train_batch_size": 1})
    whole = together([first, imported({"model_name_or_path": "m", "learning_rate": 2e-5})])
    overridden = next(entry for entry in whole.entries if entry.key == "learning_rate" and entry.value == 1e-4)
    assert overridden.outcome is Outcome.NO_EFFECT and not overridden.settings
    assert overridden.note == "learning_rate counts instead, with 2e-05."
    assert whole.config().learning_rate == 2e-5
