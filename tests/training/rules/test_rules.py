"""Conflicting settings are refused with a reason and a working fix."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from subtest_table import table

from training.config.applies import APPLIES, applies
from training.config.fields import settings
from training.config.machine import Machine
from training.config.run_config import RunConfig
from training.rules import check

CPU = Machine()
FOUR_V100 = Machine("cuda", 4, ["Tesla V100"] * 4, [32 << 30] * 4, bf16=False)
ONE_H100 = Machine("cuda", 1, ["H100"], [80 << 30], bf16=True)
CLUSTER = replace(FOUR_V100, most_machines=8)
ZERO3 = {"strategy": "zero3", "num_processes": 2}
QUANTIZED_FROZEN = {"zero_quantized_nontrainable_weights": True}

IN_BACKWARD = {"method": "full", "optimizer_in_backward": True, "max_grad_norm": 0}
ADAPTER = {"method_options": "adapter_len=10, adapter_layers=2"}
GRPO = {"task": "grpo", "micro_batch_size": 8, "num_generations": 4}
PREFIX = {"method": "prefix_tuning", "method_options": "num_virtual_tokens=4"}


def config(**values: Any) -> RunConfig:
    return RunConfig.model_validate({"model": "m", "data": "d"} | values)


@table(
    ("machine", "values", "setting"),
    [
        (CPU, {"strategy": "zero3"}, "strategy"),
        (CPU, {"strategy": "zero3", "offload_param": "cpu"}, "strategy"),
        (CPU, {"strategy": "ddp"}, "strategy"),
        (CPU, {"num_processes": 2}, "strategy"),
        (ONE_H100, {"strategy": "fsdp", "offload_param": "cpu"}, "strategy"),
        (CPU, ZERO3 | {"strategy": "fsdp", "offload_param": "nvme", "nvme_path": "/d"}, "offload_param"),
        (CPU, ZERO3 | {"strategy": "zero2", "offload_optimizer": "nvme", "nvme_path": "/d"}, "offload_optimizer"),
        (CPU, ZERO3 | {"offload_optimizer": "nvme"}, "offload_optimizer"),
        (CPU, ZERO3 | {"strategy": "ddp", "sequence_parallel_size": 2}, "sequence_parallel_size"),
        (CPU, ZERO3 | {"num_processes": 3, "sequence_parallel_size": 2}, "sequence_parallel_size"),
        (CPU, ZERO3 | {"num_processes": 3, "sequence_parallel_size": 3}, "sequence_parallel_size"),
        (CPU, ZERO3 | {"sequence_parallel_size": 2, "task": "dpo"}, "sequence_parallel_size"),
        (CPU, ZERO3 | {"sequence_parallel_size": 2, "packing": "packed"}, "sequence_parallel_size"),
        (CPU, ZERO3 | {"sequence_parallel_size": 2, "streaming": True}, "sequence_parallel_size"),
        (CPU, GRPO | {"micro_batch_size": 6}, "num_generations"),
        (CPU, {"task": "distill", "teacher": "t"} | PREFIX, "method"),
        (CPU, GRPO | {"policy_loss": "cispo"}, "clip_high"),
        (CPU, GRPO | {"packing": "packed"}, "packing"),
        (CPU, GRPO | {"stop_after_baseline": True, "baseline_prompts": 0}, "stop_after_baseline"),
        (CPU, GRPO | {"batch_order": "by_length"}, "batch_order"),
        (CPU, GRPO | {"generation": "vllm", "method": "full"}, "generation"),
        (CPU, GRPO | {"generation": "vllm", "method": "qlora"}, "generation"),
        (CPU, GRPO | {"generation": "vllm", "use_dora": True}, "generation"),
        (CPU, GRPO | {"generation": "vllm", "method_options": "bias=all"}, "generation"),
        (CPU, GRPO | {"kl_coefficient": 0.1, "lora_init": "pissa"}, "lora_init"),
        (CPU, GRPO | PREFIX, "method"),
        (FOUR_V100, GRPO | ZERO3 | {"sequence_parallel_size": 2}, "sequence_parallel_size"),
        (ONE_H100, {"method": "full", "precision": "fp16", "weights_precision": "fp16"}, "weights_precision"),
        (CPU, ZERO3 | {"strategy": "fsdp", "method": "adalora"}, "strategy"),
        (CPU, ZERO3 | {"strategy": "fsdp", "method": "lily"}, "strategy"),
        (CPU, ZERO3 | {"method": "prompt_tuning", "method_options": "num_virtual_tokens=4"}, "strategy"),
        (CPU, ZERO3 | {"zero_quantized_weights": True}, "zero_quantized_weights"),
        (FOUR_V100, ZERO3 | {"strategy": "zero2", "zero_quantized_gradients": True}, "zero_quantized_gradients"),
        (FOUR_V100, ZERO3 | {"num_processes": 4, "zero_hpz_partition_size": 3}, "zero_hpz_partition_size"),
        (FOUR_V100, ZERO3 | {"method": "full", **QUANTIZED_FROZEN}, "zero_quantized_nontrainable_weights"),
        (FOUR_V100, ZERO3 | {"method": "qlora", **QUANTIZED_FROZEN}, "zero_quantized_nontrainable_weights"),
        (CPU, {"strategy": "fsdp", "num_processes": 2, "offload_optimizer": "cpu"}, "offload_optimizer"),
        (CPU, {"strategy": "fsdp", "num_processes": 2, "method": "qlora", "quantization": "8bit"}, "quantization"),
        (CPU, {"strategy": "zero3", "num_processes": 2, "method": "qlora", "quantization": "8bit"}, "quantization"),
        (CPU, {"precision": "fp16"}, "precision"),
        (CPU, {"answer_rows": 5, "eval_split": 0}, "answer_rows"),
        (CPU, {"eval_answers": 5, "eval_split": 0}, "eval_answers"),
        (CPU, ZERO3 | {"sequence_parallel_size": 2, "eval_answers": 5, "eval_split": 8}, "eval_answers"),
        (CPU, {"task": "seq2seq", "strategy": "fsdp", "num_processes": 2}, "strategy"),
        (CPU, {"streaming": True, "stratify_by": "topic"}, "stratify_by"),
        (CPU, {"streaming": True, "group_by": "topic"}, "group_by"),
        (CPU, {"streaming": True, "max_samples": 100}, "max_samples"),
        (CPU, {"task": "dpo", "packing": "packed"}, "packing"),
        (CPU, {"chat_template": "{% for m in messages %}"}, "chat_template"),
        (CPU, {"train_on_prompt": True, "loss_on": "last"}, "loss_on"),
        (CPU, {"train_on_prompt": True, "weight_field": "weight"}, "weight_field"),
        (CPU, ZERO3 | {"sequence_parallel_size": 2, "weight_field": "weight"}, "weight_field"),
        (CPU, {"streaming": True, "packing": "packed"}, "packing"),
        (CPU, {"streaming": True, "batch_order": "by_length"}, "batch_order"),
        (ONE_H100, {"chunked_loss": "on", "torch_compile": True}, "chunked_loss"),
        (CPU, {"chunked_loss": "on"} | PREFIX, "chunked_loss"),
        (CPU, {"chunked_loss": "on", "method": "adalora"}, "chunked_loss"),
        (CPU, ZERO3 | {"chunked_loss": "on", "sequence_parallel_size": 2}, "chunked_loss"),
        (CPU, {"offload_activations": True}, "offload_activations"),
        (ONE_H100, {"offload_activations": True, "torch_compile": True}, "offload_activations"),
        (ONE_H100, {"offload_activations": True, "gradient_checkpointing": "offloaded"}, "offload_activations"),
        (FOUR_V100, ZERO3 | {"offload_activations": True}, "offload_activations"),
        (CPU, {"method": "full", "optimizer_in_backward": True}, "optimizer_in_backward"),
        (CPU, IN_BACKWARD | {"gradient_accumulation_steps": 2}, "optimizer_in_backward"),
        (CPU, IN_BACKWARD | {"strategy": "ddp", "num_processes": 2}, "optimizer_in_backward"),
        (FOUR_V100, IN_BACKWARD | {"precision": "fp16"}, "optimizer_in_backward"),
        (ONE_H100, IN_BACKWARD | {"optimizer": "paged_adamw_8bit"}, "optimizer_in_backward"),
        (CPU, {"attention": "flash_attention_2"}, "attention"),
        (CPU, {"attention": "flex_attention"}, "attention"),
        (ONE_H100, {"attention": "flash_attention_3", "precision": "fp32"}, "attention"),
        (FOUR_V100, {"precision": "bf16"}, "precision"),
        (FOUR_V100, {"tf32": True}, "tf32"),
        (FOUR_V100, {"optimizer": "adamw_anyprecision", "method": "full"}, "optimizer"),
        (CPU, {"optimizer": "muon", "strategy": "zero2", "num_processes": 2}, "optimizer"),
        (CPU, {"lr_scheduler": "reduce_on_plateau", "eval_steps": 0}, "lr_scheduler"),
        (CPU, {"lr_scheduler": "reduce_on_plateau", "eval_split": 0}, "lr_scheduler"),
        (CPU, {"early_stopping_patience": 2, "eval_steps": 0}, "early_stopping_patience"),
        (CPU, {"load_best_at_end": True, "eval_split": 0}, "load_best_at_end"),
        (CPU, {"merge_adapter": True, "method": "full"}, "merge_adapter"),
        (CPU, {"optimizer": "adamw_8bit", "strategy": "fsdp", "num_processes": 2}, "optimizer"),
        (CPU, {"optimizer": "adafactor", "strategy": "fsdp", "num_processes": 2}, "optimizer"),
        (CPU, {"merge_adapter": True, "method": "lily"}, "merge_adapter"),
        (
            CPU,
            {"merge_adapter": True, "method": "prompt_tuning", "method_options": "num_virtual_tokens=8"},
            "merge_adapter",
        ),
        (CPU, {"streaming": True, "eval_strategy": "epoch"}, "eval_strategy"),
        (CPU, {"streaming": True, "save_strategy": "epoch"}, "save_strategy"),
        (CPU, {"lr_scheduler": "wsd", "warmup": 0.5, "decay_share": 0.7}, "decay_share"),
        (FOUR_V100, {"strategy": "ddp", "num_processes": 8}, "num_processes"),
        (ONE_H100, {"strategy": "ddp", "num_processes": 2}, "num_processes"),
        (ONE_H100, {"strategy": "zero2"}, "strategy"),
        (CLUSTER, {"strategy": "ddp", "num_processes": 3, "num_machines": 2}, "num_machines"),
        (CLUSTER, {"strategy": "ddp", "num_processes": 32, "num_machines": 2}, "num_processes"),
        (
            CLUSTER,
            {"strategy": "ddp", "num_processes": 4, "num_machines": 2, "min_machines": 3},
            "min_machines",
        ),
        (CLUSTER, {"num_machines": 2}, "num_machines"),
        (FOUR_V100, {"strategy": "ddp", "num_processes": 4, "num_machines": 2}, "num_machines"),
        (FOUR_V100, {"strategy": "ddp", "num_processes": 4, "offload_optimizer": "cpu"}, "offload_optimizer"),
        (FOUR_V100, {"strategy": "zero2", "num_processes": 4, "offload_param": "cpu"}, "offload_param"),
        (CPU, {"method": "vera", "method_options": "rr=8"}, "method_options"),
        (CPU, {"method": "vera", "method_options": "r=many, d_initial=0.2"}, "method_options"),
        (CPU, {"method": "full", "method_options": "r=8"}, "method_options"),
        (CPU, {"method": "prompt_tuning"}, "method_options"),
        (CPU, {"method": "loha", "quantization": "4bit"}, "quantization"),
        (CPU, {"method": "adalora", "task": "dpo", "save_steps": 0}, "method"),
        (CPU, {"method": "adaption_prompt", "task": "kto", "micro_batch_size": 2} | ADAPTER, "method"),
        (CPU, {"method": "prompt_tuning", "task": "orpo", "method_options": "num_virtual_tokens=4"}, "method"),
        (CPU, {"method": "delora", "quantization": "8bit"}, "quantization"),
        (
            CPU,
            PREFIX | {"gradient_checkpointing": True},
            "gradient_checkpointing",
        ),
        (CPU, {"method": "adalora", "strategy": "zero2", "num_processes": 2}, "strategy"),
        (CPU, ZERO3 | {"method_options": "trainable_token_indices=[1]"}, "strategy"),
        (CPU, {"method": "delora", "strategy": "zero3", "num_processes": 2}, "strategy"),
        (CPU, {"method": "ia3", "target_modules": "all-linear"}, "target_modules"),
        (
            CPU,
            {"method": "ia3", "target_modules": "k_proj", "method_options": "feedforward_modules=[down_proj]"},
            "target_modules",
        ),
        (CPU, {"target_modules": "*.q_proj"}, "target_modules"),
        (CPU, {"target_modules": "all-linear", "method_options": "layers_to_transform=[0]"}, "target_modules"),
        (CPU, {"lora_init": "loftq"}, "lora_init"),
        (CPU, {"lora_init": "pissa", "method": "qlora"}, "lora_init"),
        (CPU, {"lora_init": "olora", "quantization": "8bit"}, "lora_init"),
        (CPU, {"lora_init": "pissa", "strategy": "zero3", "num_processes": 2}, "lora_init"),
        (CPU, {"lora_init": "orthogonal", "method": "qlora"}, "lora_init"),
        (CPU, {"lora_init": "loftq", "method": "qlora", "strategy": "zero3", "num_processes": 2}, "lora_init"),
        (CPU, {"use_dora": True, "quantization": "8bit"}, "use_dora"),
        (CPU, {"use_dora": True, "lora_init": "mica"}, "use_dora"),
        (CPU, {"lora_init": "pissa", "task": "dpo"}, "lora_init"),
        (CPU, {"loraplus_lr_ratio": 16, "optimizer": "muon"}, "loraplus_lr_ratio"),
        (CPU, {"task": "dpo", "target_modules": "q_proj, lm_head"}, "target_modules"),
        (CPU, {"task": "kto", "target_modules": "lm_head", "micro_batch_size": 2}, "target_modules"),
        (CPU, {"task": "dpo", "target_modules": "embed_out"}, "target_modules"),
        (CPU, {"chunked_loss": "on", "target_modules": ".*(q_proj|lm_head)"}, "chunked_loss"),
        (CPU, {"task": "dpo", "target_modules": r".*(q_proj|lm_head)"}, "target_modules"),
        (CPU, {"task": "dpo", "target_modules": r"(?!model.layers.0).*"}, "target_modules"),
    ],
)
def test_a_refused_pair_names_its_setting_and_has_a_working_fix(
    machine: Machine, values: dict[str, Any], setting: str
) -> None:
    (conflict, *_) = [item for item in check(config(**values), machine) if item.blocking]
    assert conflict.settings[0] == setting
    mended = config(**(values | conflict.changes))
    assert conflict.reason not in [item.reason for item in check(mended, machine)]


@table(
    ("machine", "values"),
    [
        (CPU, {}),
        (CPU, {"strategy": "zero3", "num_processes": 2, "offload_param": "cpu", "offload_optimizer": "cpu"}),
        (ONE_H100, {"strategy": "zero3", "offload_param": "cpu"}),
        (CPU, {"strategy": "fsdp", "num_processes": 2, "offload_param": "cpu", "precision": "bf16"}),
        (ONE_H100, {"precision": "bf16", "tf32": True, "memory_limit": 0.5}),
        (ONE_H100, {"optimizer": "adamw_anyprecision", "method": "full", "learning_rate": 1e-5}),
        (ONE_H100, {"optimizer": "muon", "method": "full", "learning_rate": 1e-5}),
        (CPU, {"lr_scheduler": "reduce_on_plateau"}),
        (CPU, {"early_stopping_patience": 1, "load_best_at_end": True, "eval_steps": 0, "eval_strategy": "epoch"}),
        (FOUR_V100, {"strategy": "zero2", "num_processes": 4, "offload_optimizer": "cpu", "precision": "fp16"}),
    ],
)
def test_working_combinations_are_accepted(machine: Machine, values: dict[str, Any]) -> None:
    assert check(config(**values), machine) == []


@table(
    ("machine", "values"),
    [
        (CPU, {"method": "full", "learning_rate": 1e-2}),
        (CPU, {"learning_rate": 0.1}),
        (CPU, {"method": "full", "learning_rate": 1e-3, "optimizer": "lion"}),
        (CPU, {"optimizer": "muon"}),
        (CPU, {"optimizer": "paged_adamw_8bit"}),
        (CPU, {"optimizer": "adamw_anyprecision", "method": "full", "learning_rate": 1e-5}),
        (CPU, {"optimizer": "adafactor", "strategy": "zero2", "num_processes": 2}),
        (CPU, {"tf32": True}),
        (CPU, GRPO | {"clip_high": 0.4}),
        (ONE_H100, {"optimizer": "adamw_anyprecision"}),
        (ONE_H100, {"optimizer": "paged_adamw_8bit", "strategy": "zero2", "offload_optimizer": "cpu"}),
    ],
)
def test_working_but_unwise_combinations_are_advice_with_a_working_fix(
    machine: Machine, values: dict[str, Any]
) -> None:
    (advice,) = check(config(**values), machine)
    assert not advice.blocking
    assert check(config(**(values | advice.changes)), machine) == []


@table(
    ("values", "setting"),
    [
        ({"method": "vera", "method_options": "r=8", "lora_r": 8}, "lora_r"),
        ({"method": "full", "target_modules": "q_proj", "learning_rate": 1e-5}, "target_modules"),
        ({"method": "full", "modules_to_save": "lm_head", "learning_rate": 1e-5}, "modules_to_save"),
        ({"trainable_layers": 1}, "trainable_layers"),
        ({"beta": 0.2}, "beta"),
        ({"adam_beta2": 0.95, "optimizer": "adafactor"}, "adam_beta2"),
        ({"lr_scheduler": "constant", "warmup": 10}, "warmup"),
        ({"max_new_tokens": 64}, "max_new_tokens"),
        (GRPO | {"generation": "vllm", "vllm_url": "http://host:8000", "vllm_memory": 0.5}, "vllm_memory"),
    ],
)
def test_a_setting_without_effect_is_reset_by_its_advice(values: dict[str, Any], setting: str) -> None:
    (advice,) = check(config(**values), CPU)
    assert advice.settings[0] == setting and not advice.blocking
    assert check(config(**(values | advice.changes)), CPU) == []


def test_advice_on_a_setting_without_effect_says_where_it_applies() -> None:
    (advice,) = check(config(method="vera", lora_r=8), CPU)
    assert advice.reason == "lora_r has no effect with method vera."
    assert advice.fix == (
        "It applies to method lora or qlora. Reset it to its default, 16. Set r of vera in method_options."
    )


def test_settings_of_answers_have_no_effect_with_a_task_that_gives_none() -> None:
    chosen = config(task="reward", eval_answers=2, eval_metrics="f1", eval_answers_every=2)
    named = {conflict.settings[0] for conflict in check(chosen, CPU) if "has no effect" in conflict.reason}
    assert named == {"eval_metrics", "eval_answers_every"}  # eval_answers itself is refused


CHOICES = {name: setting.choices for name, setting in settings().items() if setting.kind == "choice"}
GIVEN: dict[str, Any] = {"validation_data": "v", "push_to_hub": "a/b", "early_stopping_patience": 2, "eval_answers": 3}
OTHER_TEXTS = {
    "eval_metrics": "f1",
    "nvme_path": "/disk",
    "slurm_options": "partition=gpu",
    "deepspeed_config": "{}",
    "method_options": "r=8",
}


def other_value(name: str) -> Any:
    """A value of the setting that is not its default."""
    setting = settings()[name]
    if setting.kind == "boolean":
        return not setting.default
    if setting.kind == "choice":
        return next(choice for choice in setting.choices if choice != setting.default)
    if setting.kind == "text":
        return OTHER_TEXTS.get(name, "lm_head")
    if setting.kind == "integer":
        return max(setting.minimum or 0, setting.default or 0) + 1
    return setting.default / 2 if setting.default else (setting.minimum or 0) + 0.5


@table("name", list(APPLIES))
@pytest.mark.slow
def test_a_changed_setting_has_advice_or_a_conflict_exactly_where_it_has_no_effect(name: str) -> None:
    choices = [(chooser, choice) for chooser, known in CHOICES.items() for choice in known if chooser != name]
    for chooser, choice in [*choices, *((chooser, given) for chooser, given in GIVEN.items() if chooser != name)]:
        chosen = config(**{chooser: choice, name: other_value(name)})
        conflicts = [conflict for conflict in check(chosen, CPU) if name in conflict.settings]
        if applies(name, chosen.model_dump(mode="json")):
            assert not [conflict for conflict in conflicts if "has no effect" in conflict.reason]
        elif getattr(chosen, name):
            assert conflicts, (chooser, choice)


def test_defaults_never_have_advice() -> None:
    for chooser, choices in CHOICES.items():
        for choice in choices:
            advised = [
                item.settings[0] for item in check(config(**{chooser: choice}), CPU) if "has no effect" in item.reason
            ]
            assert advised in ([], [chooser])


def test_a_disabled_setting_has_no_advice() -> None:
    assert check(config(validation_data="v", eval_split=0, lr_scheduler="constant", warmup=0), CPU) == []


@table(("machine", "precision"), [(CPU, "fp32"), (FOUR_V100, "fp16"), (ONE_H100, "bf16")])
def test_automatic_precision_is_the_best_the_machine_has(machine: Machine, precision: str) -> None:
    assert machine.best_precision.value == precision


@table(
    ("values", "sure"),
    [
        ({"learning_rate": 1e-2}, "Likely"),
        ({"learning_rate": 0.1}, "Almost certainly"),
        ({"learning_rate": 2e-3, "optimizer": "lion"}, "Likely"),
        ({"method": "full", "learning_rate": 2e-3}, "Likely"),
        ({"method": "full", "learning_rate": 0.05}, "Almost certainly"),
        ({"learning_rate": 2e-3}, ""),
        ({"learning_rate": 0.1, "optimizer": "sgd"}, ""),
        ({"learning_rate": 0.1, "method": "prompt_tuning", "method_options": "num_virtual_tokens=8"}, ""),
    ],
)
def test_a_learning_rate_beyond_what_the_method_bears_is_foretold(values: dict[str, Any], sure: str) -> None:
    found = [item for item in check(config(**values), CPU) if item.settings[0] == "learning_rate"]
    assert [item.reason.partition(":")[0].startswith(sure) and bool(item.changes) for item in found] == [True] * bool(
        sure
    )


MODELS: dict[str, tuple[dict[str, Any], str]] = {
    "t5": ({"model_type": "mt5", "torch_dtype": "float32"}, "Very likely"),
    "gemma 3": ({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}}, "Very likely"),
    "a bf16 checkpoint": ({"model_type": "llama", "dtype": "bfloat16"}, "The loss may become NaN"),
    "an older bf16 checkpoint": ({"model_type": "bloom", "torch_dtype": "bfloat16"}, "The loss may become NaN"),
    "an fp16 checkpoint": ({"model_type": "bloom", "torch_dtype": "float16"}, ""),
}


@table("name", MODELS)
def test_overflow_in_fp16_is_foretold_from_the_model_s_config(tmp_path: Path, name: str) -> None:
    values, sure = MODELS[name]
    (tmp_path / "config.json").write_text(json.dumps(values))
    chosen = {"model": str(tmp_path), "precision": "fp16"}
    found = [item for item in check(config(**chosen), ONE_H100) if item.settings[0] == "precision"]
    assert [(item.reason.startswith(sure), item.changes) for item in found] == [(True, {"precision": "bf16"})] * bool(
        sure
    )
    assert check(config(**chosen | {"precision": "bf16"}), ONE_H100) == []
    on_v100 = [item.changes for item in check(config(model=str(tmp_path)), FOUR_V100)]
    assert on_v100 == [{"precision": "fp32"}] * bool(sure)  # auto is fp16 there
    assert check(config(model=str(tmp_path)), ONE_H100) == []


@pytest.mark.parametrize(
    ("values", "field", "words"),
    [
        ({"rewards": ""}, "rewards", "rewards is empty"),
        ({"rewards": "exact_macth"}, "rewards", "'exact_macth' in rewards is unknown"),
        ({"rewards": "judge"}, "rewards", "option url: Field required"),
        ({"rewards": "other.py:city"}, "rewards", "is not sent with a run"),
        (
            {"rewards": "city", "reward_code": "def town(prompt, answer, expected):\n    return 1\n"},
            "rewards",
            "is unknown",
        ),
        ({"rewards": "city", "reward_code": "def city(\n"}, "reward_code", "is not valid Python"),
    ],
)
def test_rewards_that_a_run_cannot_use_are_named_before_it_starts(
    values: dict[str, Any], field: str, words: str
) -> None:
    blocking = [conflict for conflict in check(config(**GRPO | values), CPU) if conflict.blocking]
    assert [conflict.settings[0] for conflict in blocking] == [field]
    assert words in blocking[0].reason and blocking[0].fix


def test_distillation_without_a_teacher_is_refused() -> None:
    (conflict,) = [conflict for conflict in check(config(task="distill"), CPU) if conflict.blocking]
    assert conflict.settings[0] == "teacher" and "id of a run" in conflict.fix


def test_functions_of_the_code_are_rewards_by_their_name() -> None:
    code = "def city(prompt, answer, expected):\n    return answer == expected\n"
    values = {"rewards": "city * 2, exact_match", "reward_code": code}
    assert not [conflict for conflict in check(config(**GRPO | values), CPU) if conflict.blocking]
