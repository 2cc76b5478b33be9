"""Keys of axolotl's YAML (0.12 and later)."""

from typing import Any

from training.config.trackers import TRACKERS
from training.foreign.chat_keys import template_kwargs, template_name
from training.foreign.entries import (
    Answer,
    Rule,
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
from training.foreign.tasks import known_task
from training.foreign.trainer_keys import (
    ATTENTION,
    COMMAND,
    IN_LATHE,
    LOGGING,
    OPTIMIZERS,
    SCHEDULERS,
    TRAINER,
    checkpointing,
)  # fmt: skip

_TASKS = {"dpo": "dpo", "ipo": "dpo", "kto": "kto", "orpo": "orpo"}
_SIGN_IN = "the run's name is the tracker's; the worker's environment has server and key (docs/trackers.md)."
_KERNELS = "Lathe does not use these kernels; the numbers are the same without."
DEFAULTS: Values = {
    "adapter": None, "sequence_len": 512, "micro_batch_size": 1, "num_epochs": 1, "val_set_size": 0, "lr_scheduler": "cosine",
}  # fmt: skip


def defaults(_: Values) -> Values:
    """What axolotl uses if a key is missing, where Lathe's default is another."""
    return DEFAULTS


def _method(value: Any, values: Values) -> Answer:
    """adapter, with load_in_4bit and load_in_8bit."""
    if is_off(value):
        return Answer({"method": "full"})
    bits = "4bit" if is_on(values.get("load_in_4bit")) else "8bit" if is_on(values.get("load_in_8bit")) else ""
    if value in ("lora", "qlora"):
        if value == "qlora" or bits:
            return Answer({"method": "qlora", "quantization": bits or "4bit"})
        return Answer({"method": "lora"})
    return Answer(None, "method stays lora.")


def _task(value: Any, _: Values) -> Answer:
    if is_off(value):
        return Answer({}, "is off.")
    task = known_task(value, _TASKS, "rl")
    return Answer({"task": task, "dpo_loss": "ipo"} if value == "ipo" else {"task": task})


def _trackers(values: Values) -> str:
    """The trackers that the file turns on, by use_... or by their project."""
    projects = {"wandb": "wandb_project", "mlflow": "mlflow_experiment_name", "trackio": "trackio_project_name"}
    named = {name for name, key in projects.items() if values.get(key)}
    return ", ".join(name for name in TRACKERS if is_on(values.get(f"use_{name}", name in named)))


def _use_tracker(value: Any, values: Values) -> Answer:
    return Answer({"report_to": _trackers(values)}) if is_on(value) else Answer({}, "is off.")


def _tracker_project(value: Any, values: Values) -> Answer:
    """The project of a tracker, which axolotl reports to if it is given."""
    names = _trackers(values)
    if is_off(value) or not names:
        return Answer({}, "is off.")
    return Answer({"report_to": names, "report_project": str(value)})


def _per_epoch(what: str) -> Rule:
    """evals_per_epoch and saves_per_epoch: a share of the whole training."""

    def rule(value: Any, values: Values) -> Answer:
        if not isinstance(value, (int, float)) or value <= 0:
            return Answer({f"{what}_steps": 0}, "is off.")
        if value == 1:
            return Answer({f"{what}_strategy": "epoch"})
        epochs = values.get("num_epochs")
        times = value * (epochs if isinstance(epochs, (int, float)) and epochs > 0 else 1)
        return Answer({f"{what}_steps": 1 / max(1.0001, min(1e4, times))}, "as a share of all steps.")

    return rule


def _targets(value: Any, _: Values) -> Answer:
    if is_off(value):
        return Answer({}, "is empty.")
    if isinstance(value, str):
        return Answer(None, "Lathe takes names of modules, not a pattern; target_modules stays auto.")
    return Answer({"target_modules": names(value)})


def _packing(value: Any, _: Values) -> Answer:
    return Answer({"packing": "packed" if is_on(value) else "none"})


def _modules(value: Any, _: Values) -> Answer:
    return Answer({} if is_off(value) else {"modules_to_save": names(value)})


def _linear(value: Any, _: Values) -> Answer:
    return Answer({"target_modules": "all-linear"}) if is_on(value) else Answer({}, "is off.")


TABLE: Table = {
    **TRAINER,
    COMMAND: ignored("starts the training."),
    "base_model": to("model"),
    "revision_of_model": to("revision"),
    "adapter": _method,
    "load_in_4bit": lambda value, values: Answer(
        {} if is_off(value) or is_off(values.get("adapter")) else {"quantization": "4bit"}
    ),
    "load_in_8bit": lambda value, values: Answer(
        {}
        if is_off(value) or is_off(values.get("adapter")) or is_on(values.get("load_in_4bit"))
        else {"quantization": "8bit"}
    ),
    "rl": _task,
    "hub_model_id": to("push_to_hub"),
    "sequence_len": to("max_length"),
    "micro_batch_size": to("micro_batch_size"),
    "num_epochs": to("epochs"),
    "optimizer": choice("optimizer", OPTIMIZERS, "adamw"),
    "lr_scheduler": choice("lr_scheduler", SCHEDULERS, "cosine"),
    "cosine_min_lr_ratio": lambda value, _: Answer(
        {} if is_off(value) else {"lr_scheduler": "cosine_with_min_lr", "min_lr_ratio": value}
    ),
    "adam_eps": to("adam_epsilon"),
    "val_set_size": to("eval_split"),
    "sample_packing": _packing,
    "eval_sample_packing": ignored("Lathe packs evaluation rows as training rows."),
    "pad_to_sequence_len": ignored(IN_LATHE),
    "train_on_inputs": flag({"train_on_prompt": True}),
    "lora_r": to("lora_r"),
    "lora_alpha": to("lora_alpha"),
    "lora_dropout": to("lora_dropout"),
    "lora_target_modules": _targets,
    "lora_target_linear": _linear,
    "lora_modules_to_save": _modules,
    "lora_fan_in_fan_out": ignored(IN_LATHE),
    "peft_use_dora": flag({"use_dora": True}),
    "peft_use_rslora": flag({"use_rslora": True}),
    "loraplus_lr_ratio": to("loraplus_lr_ratio"),
    "lora_model_dir": to("init_adapter"),
    "lora_target_parameters": refused("Lathe's adapters train modules."),
    "evals_per_epoch": _per_epoch("eval"),
    "saves_per_epoch": _per_epoch("save"),
    "eval_batch_size": ignored("Lathe evaluates in the batch size that fits the memory."),
    "gradient_checkpointing": checkpointing,
    "activation_offloading": ignored("gives gradient_checkpointing offloaded."),
    "attn_implementation": choice("attention", ATTENTION, "auto"),
    "flash_attention": flag({"attention": "flash_attention_2"}),
    "sdp_attention": flag({"attention": "sdpa"}),
    "eager_attention": flag({"attention": "eager"}),
    "flex_attention": flag({"attention": "flex_attention"}),
    "xformers_attention": refused("attention sdpa is the nearest."),
    "float16": flag({"precision": "fp16"}),
    "bfloat16": flag({"precision": "bf16"}),
    "torch_dtype": ignored("precision and weights_precision say this."),
    "chat_template": template_name,
    "chat_template_jinja": to("chat_template"),
    "chat_template_kwargs": template_kwargs,
    "train_on_eos": usual("turn", "Lathe trains the end token of each turn with loss."),
    "train_on_eot": usual("turn", "Lathe trains the end token of each turn with loss."),
    "default_system_message": refused("write it into the rows, or into a template of your own (chat_template)."),
    "special_tokens": refused("Lathe uses the tokenizer's own special tokens."),
    "tokens": refused("Lathe does not add tokens."),
    "added_tokens_overrides": refused("Lathe does not rename tokens."),
    "eot_tokens": ignored("Lathe learns the end of each turn as the chat template writes it."),
    "rl_beta": to("beta"),
    "dpo_beta": to("beta"),
    "orpo_alpha": to("beta"),
    "kto_desirable_weight": to("desirable_weight"),
    "kto_undesirable_weight": to("undesirable_weight"),
    "neftune_noise_alpha": to("neftune_noise_alpha"),
    "context_parallel_size": to("sequence_parallel_size"),
    "sequence_parallel_degree": to("sequence_parallel_size"),
    "tensor_parallel_size": lambda value, _: (
        Answer({}, "is off.") if value in (None, 1) else Answer(None, "ZeRO-3 or FSDP is the nearest.")
    ),
    "expert_parallel_size": lambda value, _: (
        Answer({}, "is off.") if value in (None, 1) else Answer(None, "ZeRO-3 or FSDP is the nearest.")
    ),
    "dp_shard_size": ignored("num_processes says this."),
    "dp_replicate_size": refused("FSDP shards over all processes."),
    "fsdp_version": ignored("Lathe uses FSDP2."),
    "unfrozen_parameters": refused("Lathe trains whole layers (trainable_layers) or an adapter."),
    "streaming": flag({"streaming": True}),
    "shuffle_merged_datasets": ignored("Lathe shuffles the rows."),
    "push_dataset_to_hub": refused("Lathe pushes results only."),
    "hf_use_auth_token": ignored("HF_TOKEN in the worker's environment says this."),
    "model_type": ignored("Lathe finds the class itself."),
    "tokenizer_type": ignored("Lathe finds the class itself."),
    "processor_type": ignored("Lathe trains on text."),
    "tokenizer_use_fast": ignored("Lathe always uses the fast tokenizer."),
    "tokenizer_legacy": ignored(IN_LATHE),
    "is_llama_derived_model": ignored(IN_LATHE),
    "is_mistral_derived_model": ignored(IN_LATHE),
    "strict": ignored("Lathe checks that every weight is loaded."),
    "dataset_prepared_path": ignored("Lathe stores the tokens itself."),
    "dataset_processes": ignored(IN_LATHE),
    "skip_prepare_dataset": refused("Lathe tokenizes the rows itself."),
    "resize_token_embeddings_to_32x": refused("Lathe keeps the size of the embedding."),
    "loss_watchdog_threshold": ignored("Lathe stops a run whose loss is not a number, and names the cause."),
    "loss_watchdog_patience": ignored("Lathe stops a run whose loss is not a number, and names the cause."),
    "auto_resume_from_checkpoints": ignored("Lathe resumes from the newest checkpoint by itself."),
    "debug": ignored(LOGGING),
    "torchdistx_path": ignored(IN_LATHE),
    "low_cpu_mem_usage": ignored(IN_LATHE),
    "device_map": ignored(IN_LATHE),
    "plugins": refused("Lathe has no plugins of axolotl; kernels do not change the numbers."),
    "pretraining_dataset": refused("set task to pretraining, and data to the file."),
    "gptq": refused("Lathe quantizes with bitsandbytes (quantization 4bit)."),
    "qat": refused("Lathe has no training for quantization."),
    "process_reward_model": lambda value, _: (
        Answer({}, "is off.") if is_off(value) else Answer({"task": known_task("prm", _TASKS, "process_reward_model")})
    ),
    "reward_model": flag({"task": "reward"}),
    "relora": refused("Lathe has no ReLoRA."),
    "num_labels": ignored("Lathe counts the classes in the data."),
    "batch_size": refused("micro_batch_size x gradient_accumulation_steps x num_processes says this."),
    "eta_min": refused("give min_lr_ratio with lr_scheduler cosine_with_min_lr."),
    "min_sample_len": refused("Lathe trains every row with an answer."),
    "dataset_exact_deduplication": refused("the page of the data set counts duplicates."),
    "model_config": refused("Lathe takes the model's configuration as it is."),
    "tokenizer_config": refused("Lathe takes the tokenizer from the model's folder."),
    "quantize_moe_experts": ignored("Lathe quantizes the experts that bitsandbytes can quantize."),
    "max_packed_sequence_len": ignored("sequence_len says this."),
    **{f"use_{name}": _use_tracker for name in TRACKERS},
    "wandb_project": _tracker_project,
    "mlflow_experiment_name": _tracker_project,
    "trackio_project_name": _tracker_project,
}
PREFIXES: Table = {
    "wandb_": ignored(_SIGN_IN),
    "mlflow_": ignored(_SIGN_IN),
    "comet_": ignored(LOGGING),
    "trackio_": ignored(_SIGN_IN),
    "swanlab_": ignored(LOGGING),
    "use_swanlab": ignored(LOGGING),
    "use_otel": ignored(LOGGING),
    "otel_": ignored(LOGGING),
    "use_scattermoe": refused(_KERNELS),
    "use_sonicmoe": refused(_KERNELS),
    "use_dsv4_kernels": refused(_KERNELS),
    "use_glm_dsa_kernels": refused(_KERNELS),
    "use_onebitllms": refused(_KERNELS),
    "fused_attn_kernel": refused(_KERNELS),
    "experts_implementation": refused(_KERNELS),
    "tiled_mlp": refused(_KERNELS),
    "liger_": refused(_KERNELS),
    "lora_mlp_kernel": refused(_KERNELS),
    "lora_qkv_kernel": refused(_KERNELS),
    "lora_o_kernel": refused(_KERNELS),
    "use_kernels": refused(_KERNELS),
    "cut_cross_entropy": refused(_KERNELS),
    "flash_attn_": refused(_KERNELS),
    "gptq_": ignored("belongs to gptq."),
    "relora_": ignored("belongs to relora."),
    "vllm": refused("Lathe generates no answers during training."),
    "trl": refused("Lathe has no training by generated answers (GRPO)."),
    "fp8": refused("Lathe does not train in 8 bits; precision bf16 is the nearest."),
    "lisa_": refused("Lathe has no LISA."),
    "freeze_mm_": ignored("Lathe freezes the towers of multimodal models."),
}
