"""Keys of trl's scripts, of accelerate's configuration and of PEFT's adapter_config.json."""

from typing import Any

from training.foreign.chat_keys import template_kwargs
from training.foreign.entries import (
    Answer,
    Table,
    Values,
    choice,
    flag,
    ignored,
    is_off,
    is_on,
    names,
    refused,
    to,
    usual,
)
from training.foreign.trainer_keys import ATTENTION, IN_LATHE, TRAINER

_STRATEGIES = {"NO": "single", "MULTI_GPU": "ddp", "MULTI_CPU": "ddp", "FSDP": "fsdp"}
_LOSSES = {
    name: name for name in ("sigmoid", "hinge", "ipo", "apo_zero", "apo_down", "sppo_hard", "nca_pair", "bco_pair")
}
_BY_LAUNCHER = "Lathe launches the ranks itself."


def _adapter(value: Any, values: Values) -> Answer:
    """use_peft, with load_in_4bit and load_in_8bit."""
    if is_off(value):
        return Answer({"method": "full"})
    bits = "4bit" if is_on(values.get("load_in_4bit")) else "8bit" if is_on(values.get("load_in_8bit")) else ""
    return Answer({"method": "qlora", "quantization": bits} if bits else {"method": "lora"})


def _targets(value: Any, _: Values) -> Answer:
    return Answer({} if is_off(value) else {"target_modules": names(value)})


def _modules(value: Any, _: Values) -> Answer:
    return Answer({} if is_off(value) else {"modules_to_save": names(value)})


def _dataset(value: Any, _: Values) -> Answer:
    if is_off(value):
        return Answer({}, "is empty.")
    return Answer(None, f"{value} is a data set of the hub: import it on the page Data sets, then pick it.")


def _bias(value: Any, _: Values) -> Answer:
    return Answer({}, "is off.") if value in (None, "none") else Answer(None, "Lathe trains no biases with LoRA.")


def _loss(value: Any, _: Values) -> Answer:
    """loss_type of trl's preference trainers, one or a list, and of its other trainers."""
    name = str(value[0] if isinstance(value, list) and len(value) == 1 else value)
    if name in _LOSSES:
        return Answer({"dpo_loss": _LOSSES[name]})
    own = name in ("kto", "nll", "apo_zero_unpaired")
    return Answer({}, "belongs to the task.") if own else Answer(None, f"Lathe has {', '.join(_LOSSES)}.")


def _divergence(value: Any, _: Values) -> Answer:
    """f_divergence_type, which only DPO's arguments have."""
    task: Values = {"task": "dpo"}
    return (
        Answer(task, "only DPO has it.")
        if value == "reverse_kl"
        else Answer(None, "Lathe has the reverse KL divergence.")
    )


def _reward(value: Any, _: Values) -> Answer:
    """center_rewards_coefficient, which only reward models have."""
    if is_off(value):
        return Answer({"task": "reward"}, "only reward models have it.")
    return Answer(None, "Lathe does not center rewards.")


TRL_DEFAULTS: Values = {"use_peft": None, "learning_rate": 2e-5, "per_device_train_batch_size": 8, "logging_steps": 10,
                        "save_steps": 500, "warmup_ratio": 0.0, "gradient_checkpointing": True}  # fmt: skip
TRL: Table = {
    **TRAINER,
    "model_name_or_path": to("model"),
    "model_revision": to("revision"),
    "dataset_name": _dataset,
    "dataset_config": ignored("belongs to dataset_name."),
    "dataset_train_split": ignored("belongs to dataset_name."),
    "dataset_test_split": ignored("belongs to dataset_name."),
    "dataset_text_field": lambda value, _: Answer({} if value in (None, "text") else {"columns": f"text={value}"}),
    "max_length": to("max_length"),
    "max_seq_length": to("max_length"),
    "max_prompt_length": ignored("max_length limits prompt and answer together."),
    "packing": flag({"packing": "packed"}),
    "padding_free": flag({"packing": "padding_free"}),
    "completion_only_loss": flag({"train_on_prompt": False}, {"train_on_prompt": True}),
    "chat_template_path": to("chat_template"),
    "chat_template_kwargs": template_kwargs,
    "assistant_only_loss": flag({"train_on_prompt": False}),
    "beta": to("beta"),
    "loss_type": _loss,
    "disable_dropout": ignored("the reference model never has dropout."),
    "truncation_mode": usual("keep_start", "Lathe truncates at the end."),
    "packing_strategy": usual("bfd", "Lathe packs by best fit."),
    "f_divergence_type": _divergence,
    "f_alpha_divergence_coef": ignored("belongs to f_divergence_type."),
    "discopop_tau": ignored("belongs to loss_type discopop."),
    "sync_ref_model": usual(False, "Lathe keeps the reference model as it is."),
    "ref_model_mixup_alpha": ignored("belongs to sync_ref_model."),
    "ref_model_sync_steps": ignored("belongs to sync_ref_model."),
    "center_rewards_coefficient": _reward,
    "use_peft": _adapter,
    "lora_r": to("lora_r"),
    "lora_alpha": to("lora_alpha"),
    "lora_dropout": to("lora_dropout"),
    "lora_target_modules": _targets,
    "lora_modules_to_save": _modules,
    "lora_task_type": ignored("task says this."),
    "use_rslora": flag({"use_rslora": True}),
    "use_dora": flag({"use_dora": True}),
    "load_in_4bit": flag({"quantization": "4bit"}),
    "load_in_8bit": flag({"quantization": "8bit"}),
    "bnb_4bit_quant_type": ignored("Lathe uses nf4."),
    "use_bnb_nested_quant": flag({"double_quantization": True}, {"double_quantization": False}),
    "attn_implementation": choice("attention", ATTENTION, "auto"),
    "torch_dtype": ignored("precision and weights_precision say this."),
    "dtype": ignored("precision and weights_precision say this."),
    "desirable_weight": lambda value, _: Answer({"task": "kto", "desirable_weight": value}),
    "undesirable_weight": to("undesirable_weight"),
}
ACCELERATE: Table = {
    "distributed_type": choice("strategy", _STRATEGIES | {"DEEPSPEED": "zero2"}, "single"),
    "num_processes": to("num_processes"),
    "mixed_precision": choice("precision", {"no": "fp32", "bf16": "bf16", "fp16": "fp16"}, "bf16"),
    "num_machines": to("num_machines"),
    "dynamo_backend": lambda value, _: Answer({} if str(value).lower() == "no" else {"torch_compile": True}),
    "use_cpu": ignored("the worker decides on which devices a run trains."),
    "gpu_ids": ignored("the worker decides on which devices a run trains."),
    "enable_cpu_affinity": ignored(IN_LATHE),
    **{
        name: ignored(_BY_LAUNCHER)
        for name in ("compute_environment", "debug", "downcast_bf16", "machine_rank", "main_training_function", "rdzv_backend",
                     "same_network", "tpu_env", "tpu_use_cluster", "tpu_use_sudo", "main_process_ip", "main_process_port",
                     "deepspeed_multinode_launcher", "tpu_name", "tpu_zone", "commands", "command_file")
    },
}  # fmt: skip
ADAPTER: Table = {
    "base_model_name_or_path": to("model"),
    "revision": to("revision"),
    "peft_type": lambda value, _: Answer({"method": str(value).lower()}),
    "r": to("lora_r"),
    "lora_alpha": to("lora_alpha"),
    "lora_dropout": to("lora_dropout"),
    "target_modules": _targets,
    "modules_to_save": _modules,
    "use_dora": flag({"use_dora": True}),
    "use_rslora": flag({"use_rslora": True}),
    "task_type": choice("task", {"CAUSAL_LM": "sft", "SEQ_2_SEQ_LM": "seq2seq", "SEQ_CLS": "classification"}, "sft"),
    "inference_mode": ignored("describes the saved adapter."),
    "auto_mapping": ignored("describes the saved adapter."),
    "peft_version": ignored("describes the saved adapter."),
    "fan_in_fan_out": ignored(IN_LATHE),
    "bias": _bias,
    "init_lora_weights": lambda value, _: Answer({} if value in (None, True, "true") else {"lora_init": value}),
    **{
        name: refused("give it in method_options.")
        for name in ("alpha_pattern", "rank_pattern", "layers_to_transform", "layers_pattern", "exclude_modules",
                     "layer_replication", "megatron_config", "loftq_config", "eva_config", "corda_config",
                     "trainable_token_indices", "lora_bias", "target_parameters", "use_qalora", "arrow_config",
                     "alora_invocation_tokens", "ensure_weight_tying")
    },
    "megatron_core": ignored("belongs to megatron_config."),
    "qalora_group_size": ignored("belongs to use_qalora."),
}  # fmt: skip
