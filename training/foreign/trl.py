"""Arguments of trl, and of scripts that use transformers' Trainer: their keys, tasks and defaults."""

import re
from typing import Any

from training.foreign.chat_keys import template_kwargs
from training.foreign.entries import Answer, Rule, Table, Values, choice, flag, is_off, is_on, listed, names, to, usual
from training.foreign.key_files import read
from training.foreign.launch_keys import SHARED
from training.foreign.trainer_keys import ATTENTION, COMMAND, DTYPE, FILE, LIGER, NO_LENGTH, TRAINER
from training.foreign.trl_meaning import (
    ADAPTER_SWITCHES,
    BITS,
    LOSSES,
    QUANTIZED_ADAPTERS,
    is_own,
    quantized_bits,
    task_of,
    trains_adapter,
)

_LENGTHS = (
    "max_length", "max_seq_length", "model_max_length", "max_seq_len", "block_size", "cutoff_len", "max_sequence_length",
)  # fmt: skip
_HOLDS_OUT = re.compile(r"(^|/)run_(clm|fim|mlm|plm)\w*\.py\b")
"""transformers' examples that hold out rows without being asked."""
_SETS = "these are data sets of the hub: import them on the page Data sets, then pick them."


def _task(_: Any, values: Values) -> Answer:
    return Answer({"task": task_of(values)})


def _task_by_file(_: Any, values: Values) -> Answer:
    task = task_of(values)
    return Answer({"task": task}) if task != "sft" else Answer({}, "says no other task.")


def method(_: Any, values: Values) -> Answer:
    """The training method that the arguments say together."""
    if not trains_adapter(values):
        return Answer({"method": "full"})
    bits = quantized_bits(values)
    return Answer({"method": "qlora", "quantization": bits} if bits else {"method": "lora"})


def _of_lora(rule: Rule) -> Rule:
    """An option of LoRA, which has no effect on full fine-tuning."""

    def checked(value: Any, values: Values) -> Answer:
        if not trains_adapter(values):
            return Answer({}, "has no effect: without use_peft all weights are trained.")
        return rule(value, values)

    return checked


def _number_of_bits(_: Any, values: Values) -> Answer:
    bits = quantized_bits(values)
    return Answer({"quantization": bits} if bits else {}, "" if bits else "means no quantization.")


def _targets(value: Any, _: Values) -> Answer:
    given = names(value).replace(" ", "")
    return Answer(
        {} if is_off(value) else {"target_modules": "all-linear" if given in ("all", "all-linear") else given}
    )


def _length(value: Any, _: Values) -> Answer:
    if value is None:
        return Answer(None, NO_LENGTH)
    return Answer({"max_length": value})


def _lengths(_: Any, values: Values) -> Answer:
    """max_source_length and max_target_length: apart for an encoder-decoder, else their sum."""
    source, target = (
        values.get(key, default) for key, default in (("max_source_length", 1024), ("max_target_length", 128))
    )
    if task_of(values) == "seq2seq":
        return Answer({"max_length": source, "max_target_length": target})
    whole = isinstance(source, int) and isinstance(target, int)
    return Answer({"max_length": source + target} if whole else None, "the sum of both.")


def _qlora_lengths(_: Any, values: Values) -> Answer:
    """source_max_len and target_max_len of qlora.py, whose sum is a row's length."""
    lengths = [values.get("source_max_len", 1024), values.get("target_max_len", 256)]
    return (
        Answer({"max_length": sum(lengths)}, "the sum of both.")
        if all(isinstance(one, int) for one in lengths)
        else Answer(None)
    )


def _share(value: Any, _: Values) -> Answer:
    """A percentage of the rows that are held out; some scripts read a share below 1."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return Answer({"eval_split": 0}, "is off.")
    return Answer({"eval_split": value / 100 if value >= 1 else value})


def _mixture(value: Any, _: Values) -> Answer:
    """dataset_mixture: data sets of the hub, and how many of their rows are held out."""
    share = value.get("test_split_size") if isinstance(value, dict) else None
    return Answer({"eval_split": share} if share else None, _SETS)


def _loss(value: Any, values: Values) -> Answer:
    """loss_type of trl's preference trainers, one or a list, and of its other trainers."""
    name = str(value[0] if isinstance(value, list) and len(value) == 1 else value)
    if name in LOSSES:
        return Answer({"task": task_of(values), "dpo_loss": name} if COMMAND not in values else {"dpo_loss": name})
    own = name in ("kto", "nll", "chunked_nll", "apo_zero_unpaired")
    return Answer({}, "belongs to the task.") if own else Answer(None, f"Lathe has {', '.join(LOSSES)}.")


def _of_dpo(note: str) -> Rule:
    """A key that changes nothing, but only preference tasks have."""
    return lambda _, values: Answer({} if COMMAND in values else {"task": task_of(values)}, note)


def _divergence(value: Any, values: Values) -> Answer:
    if value == "reverse_kl":
        return _task(value, values)
    return Answer(None, "Lathe has the reverse KL divergence.")


def _reward(value: Any, values: Values) -> Answer:
    """center_rewards_coefficient, which only reward models have."""
    return _task(value, values) if is_off(value) else Answer(None, "Lathe does not center rewards.")


def _beta(value: Any, values: Values) -> Answer:
    if COMMAND in values:
        return Answer({"beta": value})
    return Answer(
        {"beta": value, "task": task_of(values)},
        "the file does not say which preference task; set task if it is another.",
    )


def defaults(values: Values) -> Values:
    """What the program uses for missing keys, where Lathe's default is another."""
    task = task_of(values)
    common: Values = {
        "use_peft": None,
        "per_device_train_batch_size": 8,
        "warmup_ratio": 0.0,
        "test_split_size": 0,
        "save_steps": 500,
    }
    if values.get("train_file") and not values.get("validation_file") and _HOLDS_OUT.search(str(values.get(COMMAND))):
        common["validation_split_percentage"] = 5
    if str(values.get(COMMAND)).startswith("trl "):  # which starts accelerate
        common["num_processes"] = None
    of_transformers = task in ("sft", "pretraining", "seq2seq", "classification") or "with Training" in str(
        values.get(COMMAND)
    )
    if of_transformers and not is_own(values):
        return common | {"learning_rate": 5e-5, "logging_steps": 500}
    rates = {"sft": 2e-5, "reward": 1e-4}
    adapter: Values = {"lora_dropout": 0.05} if trains_adapter(values) else {}
    nested: Values = {"use_bnb_nested_quant": False} if quantized_bits(values) == "4bit" else {}
    return (
        common
        | {"learning_rate": rates.get(task, 1e-6), "logging_steps": 10, "gradient_checkpointing": True}
        | adapter
        | nested
    )


_OPTIONS_OF_LORA: Table = {
    **dict.fromkeys(("lora_r", "lora_rank", "lora_dim"), to("lora_r")),
    "lora_alpha": to("lora_alpha"),
    "lora_dropout": to("lora_dropout"),
    **dict.fromkeys(
        ("lora_target_modules", "target_modules", "lora_target", "lora_modules", "lora_trainable", "trainable"),
        _targets,
    ),
    **dict.fromkeys(("lora_modules_to_save", "modules_to_save"), listed("modules_to_save")),
    "lora_bias": usual("none", "Lathe trains no biases with LoRA."),
    "use_rslora": flag({"use_rslora": True}),
    "use_dora": flag({"use_dora": True}),
    "init_lora_weights": lambda value, _: Answer({} if value in (None, True) else {"lora_init": value}),
}
TRL: Table = {
    **SHARED,
    **TRAINER,
    **read("trl")[0],
    COMMAND: _task,
    FILE: _task_by_file,
    "dataset_text_field": lambda value, _: Answer({} if value in (None, "text") else {"columns": f"text={value}"}),
    "test_split_size": lambda value, _: Answer({"eval_split": value or 0}),
    "validation_split_percentage": _share,
    "dataset_mixture": _mixture,
    "datasets": lambda value, _: Answer({}, "is empty.") if is_off(value) else Answer(None, _SETS),
    **dict.fromkeys(_LENGTHS, _length),
    **dict.fromkeys(("source_max_len", "target_max_len"), _qlora_lengths),
    "eval_dataset_size": lambda value, values: (
        Answer({"eval_split": value}) if is_on(values.get("do_eval")) else Answer({"eval_split": 0}, "do_eval is off.")
    ),
    "max_source_length": _lengths,
    "max_target_length": _lengths,
    "max_prompt_length": _of_dpo("max_length limits prompt and answer together."),
    "precompute_ref_log_probs": _of_dpo("Lathe computes the reference in each step."),
    "chat_template_kwargs": template_kwargs,
    "beta": _beta,
    "dpo_beta": _beta,
    "dpo_loss_type": lambda value, values: _loss({"dpo": "sigmoid"}.get(str(value), value), values),
    "loss_type": _loss,
    "f_divergence_type": _divergence,
    "discopop_tau": _of_dpo("belongs to loss_type discopop."),
    "center_rewards_coefficient": _reward,
    **dict.fromkeys((*ADAPTER_SWITCHES, *QUANTIZED_ADAPTERS, "full_finetune", "full_finetuning"), method),
    **{name: _of_lora(rule) for name, rule in _OPTIONS_OF_LORA.items()},
    **dict.fromkeys(BITS, _number_of_bits),
    "peft_type": lambda value, values: (
        method(value, values) if str(value).upper() == "LORA" else Answer({"method": str(value).lower()})
    ),
    "pre_seq_len": lambda value, _: Answer(
        {"method": "prefix_tuning", "method_options": f"num_virtual_tokens={value}"} if value else {}
    ),
    "attn_implementation": choice("attention", ATTENTION, "auto"),
    "torch_dtype": DTYPE,
    "dtype": DTYPE,
    "use_liger_kernel": LIGER,
    "use_liger": LIGER,
    "desirable_weight": lambda value, values: Answer({"task": task_of(values), "desirable_weight": value}),
}
