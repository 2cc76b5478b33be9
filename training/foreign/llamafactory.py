"""Keys of LLaMA-Factory's YAML (v0.9)."""

from typing import Any

from training.config.choices import Method
from training.foreign.chat_keys import enable_thinking, template_name
from training.foreign.entries import Answer, Table, Values, choice, flag, ignored, is_off, is_on, names, refused, to
from training.foreign.tasks import known_task
from training.foreign.trainer_keys import ATTENTION, COMMAND, IN_LATHE, LIGER, TRAINER, lengths

_STAGES = {"sft": "sft", "pt": "pretraining", "dpo": "dpo", "kto": "kto", "rm": "reward"}
_LOSSES = {"sigmoid": "sigmoid", "hinge": "hinge", "ipo": "ipo"}
_ALGORITHM = "Lathe does not have this algorithm; without it the run is plain {0}."
_VISION = "Lathe trains on text."
DEFAULTS: Values = {
    "lora_target": "all", "lora_alpha": None, "disable_gradient_checkpointing": False,
    "cutoff_len": 2048, "lora_rank": 8, "per_device_train_batch_size": 8, "learning_rate": 5e-5, "num_train_epochs": 3.0,
    "lr_scheduler_type": "linear", "warmup_ratio": 0.0, "val_size": 0.0, "logging_steps": 500, "save_steps": 500,
}  # fmt: skip


def defaults(_: Values) -> Values:
    """What LLaMA-Factory uses if a key is missing, where Lathe's default is another."""
    return DEFAULTS


def _stage(value: Any, values: Values) -> Answer:
    task = known_task(value, _STAGES, "stage")
    if str(value) == "dpo" and str(values.get("pref_loss")) == "orpo":
        task = "orpo"
    return Answer({"task": task})


def _method(value: Any, values: Values) -> Answer:
    """finetuning_type, with quantization_bit."""
    bits = values.get("quantization_bit")
    if value == "lora":
        return Answer({"method": "qlora", "quantization": f"{bits}bit"} if bits in (4, 8) else {"method": "lora"})
    if value == "full":
        return Answer({"method": "full"})
    if value == "freeze":
        layers = values.get("freeze_trainable_layers", 2)
        if isinstance(layers, int) and layers > 0:
            return Answer({"method": "full", "trainable_layers": layers})
    if value in list(Method):
        return Answer({"method": value, "quantization": f"{bits}bit"} if bits in (4, 8) else {"method": value})
    return Answer(None, "Lathe has full, lora, qlora and PEFT's methods; method stays lora.")


def _bits(value: Any, _: Values) -> Answer:
    if value in (4, 8):
        return Answer({"quantization": f"{value}bit"})
    return Answer(None, "bitsandbytes has 4 and 8 bits; 4bit is the nearest.")


def _targets(value: Any, _: Values) -> Answer:
    return Answer({"target_modules": "all-linear" if value == "all" else names(value)})


def _alpha(value: Any, values: Values) -> Answer:
    rank = values.get("lora_rank")
    return Answer({"lora_alpha": value if value is not None else 2 * (rank if isinstance(rank, int) else 8)})


def _packing(value: Any, values: Values) -> Answer:
    flat = is_on(value) and is_on(values.get("neat_packing"))
    return Answer({"packing": ("padding_free" if flat else "packed") if is_on(value) else "none"})


def _pissa(value: Any, values: Values) -> Answer:
    rounds = values.get("pissa_iter", 16)
    kind = "pissa" if rounds == -1 else "pissa_niter_4" if rounds == 4 else "pissa_niter_16"
    return Answer({"lora_init": kind}) if is_on(value) else Answer({}, "is off.")


def _loss(value: Any, values: Values) -> Answer:
    if value == "orpo":
        return Answer({}, "gives the task orpo.")
    return choice("dpo_loss", _LOSSES, "sigmoid")(value, values)


def _flash(value: Any, values: Values) -> Answer:
    return choice("attention", ATTENTION, "auto")(value, values)


def _pure(value: Any, _: Values) -> Answer:
    return Answer({"precision": "bf16", "weights_precision": "bf16"}) if is_on(value) else Answer({}, "is off.")


def _no_checkpointing(value: Any, _: Values) -> Answer:
    return Answer({"gradient_checkpointing": "none" if is_on(value) else "full"})


def _predict(value: Any, _: Values) -> Answer:
    return (
        Answer({}, "is off.")
        if is_off(value)
        else Answer({"answer_rows": 100}, "Lathe answers held-out rows after training.")
    )


def _peft(value: Any, _: Values) -> Answer:
    """peft_config of LLaMA-Factory 1."""
    if not isinstance(value, dict):
        return Answer({"method": "full"})
    if value.get("name") == "freeze":
        return Answer({"method": "full", "trainable_layers": value.get("freeze_trainable_layers") or 2})
    given = {
        "lora_r": value.get("r"),
        "lora_alpha": value.get("lora_alpha"),
        "lora_dropout": value.get("lora_dropout"),
        "target_modules": None
        if is_off(value.get("target_modules"))
        else names(value["target_modules"]).replace("all", "all-linear"),
    }
    return Answer({"method": "lora"} | {name: one for name, one in given.items() if one is not None})


def _distributed(value: Any, _: Values) -> Answer:
    """dist_config of LLaMA-Factory 1."""
    name = str(value.get("name", "")) if isinstance(value, dict) else ""
    if name.startswith("fsdp"):
        return Answer({"strategy": "fsdp"})
    if name == "deepspeed":
        return Answer({"strategy": "zero3" if "3" in str(value.get("config_file", "")) else "zero2"})
    return Answer(None, "Lathe has ddp, ZeRO and FSDP.")


def _mix(value: Any, _: Values) -> Answer:
    """mix_strategy: the weights come with dataset."""
    until = {"interleave_under": "first_exhausted", "interleave_over": "all_exhausted"}.get(str(value))
    if until:
        return Answer({"mix_until": until})
    if value in ("concat", None):
        return Answer({}, "is how Lathe joins data sets without weights.")
    return Answer(None, "Lathe has concat, interleave_under and interleave_over.")


def _quantized(value: Any, _: Values) -> Answer:
    """quant_config of LLaMA-Factory 1."""
    bits = value.get("quantization_bit") if isinstance(value, dict) else None
    return Answer({"method": "qlora", "quantization": f"{bits or 4}bit"})


TABLE: Table = {
    **TRAINER,
    "model": to("model"),
    "model_class": ignored("task says this."),
    "micro_batch_size": to("micro_batch_size"),
    "peft_config": _peft,
    "dist_config": _distributed,
    "quant_config": _quantized,
    "init_config": ignored(IN_LATHE),
    "optim_config": refused("set optimizer."),
    "kernel_config": refused("Lathe does not use these kernels; the numbers are the same without."),
    "use_v1_kernels": refused("Lathe does not use these kernels; the numbers are the same without."),
    "sample_backend": ignored("Lathe answers held-out rows itself."),
    "batching_strategy": ignored("packing says this."),
    "stage": _stage,
    "model_name_or_path": to("model"),
    "model_revision": to("revision"),
    "finetuning_type": _method,
    "quantization_bit": _bits,
    "quantization_method": choice("quantization", {"bitsandbytes": "4bit", "bnb": "4bit"}, "4bit by bitsandbytes"),
    "quantization_type": ignored("Lathe uses nf4."),
    "double_quantization": flag({"double_quantization": True}, {"double_quantization": False}),
    "lora_rank": to("lora_r"),
    "lora_alpha": _alpha,
    "lora_dropout": to("lora_dropout"),
    "lora_target": _targets,
    "additional_target": lambda value, _: Answer({} if is_off(value) else {"modules_to_save": names(value)}),
    "use_rslora": flag({"use_rslora": True}),
    "use_dora": flag({"use_dora": True}),
    "loraplus_lr_ratio": to("loraplus_lr_ratio"),
    "pissa_init": _pissa,
    "pissa_iter": ignored("belongs to pissa_init."),
    "pissa_convert": ignored("Lathe stores an adapter that fits the unchanged base model."),
    "adapter_name_or_path": to("init_adapter"),
    "freeze_trainable_layers": ignored("belongs to finetuning_type freeze."),
    "freeze_trainable_modules": refused("Lathe trains whole layers (trainable_layers)."),
    "cutoff_len": to("max_length"),
    "max_samples": to("max_samples"),
    "mix_strategy": _mix,
    "interleave_probs": ignored("are the weights of dataset, with mix_strategy interleave_under or interleave_over."),
    "val_size": to("eval_split"),
    "dev_ratio": to("eval_split"),
    "max_source_length": lengths,
    "max_target_length": lengths,
    "packing": _packing,
    "neat_packing": ignored("belongs to packing."),
    "train_on_prompt": flag({"train_on_prompt": True}),
    "mask_history": flag({"loss_on": "last"}),
    "template": template_name,
    "enable_thinking": enable_thinking,
    "preserve_thinking": flag({"reasoning_history": "keep"}),
    "default_system": refused("write it into the rows, or into a template of your own (chat_template)."),
    "tool_format": ignored("Lathe renders tools by the model's own chat template."),
    "efficient_eos": refused("the chat template writes the end token."),
    "streaming": flag({"streaming": True}),
    "dataset_dir": ignored("belongs to dataset."),
    "overwrite_cache": ignored("Lathe knows by its content whether a data set is tokenized."),
    "tokenized_path": ignored("Lathe stores the tokens itself."),
    "flash_attn": _flash,
    "enable_liger_kernel": LIGER,
    "gradient_checkpointing": ignored("disable_gradient_checkpointing says this."),
    COMMAND: ignored("starts the training."),
    "use_unsloth": refused("Lathe does not use Unsloth's kernels; the numbers are the same without."),
    "disable_gradient_checkpointing": _no_checkpointing,
    "pure_bf16": _pure,
    "pref_beta": to("beta"),
    "pref_loss": _loss,
    "kto_chosen_weight": to("desirable_weight"),
    "kto_rejected_weight": to("undesirable_weight"),
    "predict_with_generate": _predict,
    "do_predict": ignored("Lathe answers held-out rows if answer_rows is set."),
    "max_new_tokens": to("max_new_tokens"),
    "cp_size": to("sequence_parallel_size"),
    "cp_mode": ignored(IN_LATHE),
    "ray_run_name": ignored(IN_LATHE),
    "low_cpu_mem_usage": ignored(IN_LATHE),
    "use_fast_tokenizer": ignored("Lathe always uses the fast tokenizer."),
    "resize_vocab": refused("Lathe does not add tokens."),
    "shift_attn": refused(_ALGORITHM.format("training")),
    "use_galore": refused(_ALGORITHM.format("full fine-tuning")),
    "use_apollo": refused(_ALGORITHM.format("full fine-tuning")),
    "use_badam": refused(_ALGORITHM.format("full fine-tuning")),
    "use_adam_mini": refused(_ALGORITHM.format("AdamW")),
    "use_muon": flag({"optimizer": "muon"}),
    "use_llama_pro": refused(_ALGORITHM.format("training of the last layers")),
    "use_dft_loss": refused(_ALGORITHM.format("cross-entropy")),
    "use_eaft_loss": refused(_ALGORITHM.format("cross-entropy")),
    "use_asft_loss": refused(_ALGORITHM.format("cross-entropy")),
    "mixture_of_depths": refused(_ALGORITHM.format("training")),
    "fp8": refused("Lathe does not train in 8 bits; precision bf16 is the nearest."),
    "freeze_vision_tower": ignored("Lathe freezes the towers of multimodal models."),
    "freeze_multi_modal_projector": ignored("Lathe freezes the towers of multimodal models."),
    "freeze_language_model": refused(_VISION),
    "image_max_pixels": ignored(_VISION),
    "video_max_pixels": ignored(_VISION),
    "video_fps": ignored(_VISION),
    "video_maxlen": ignored(_VISION),
    "ref_model": refused("Lathe's reference is the model before training."),
    "reward_model": refused("Lathe has no PPO."),
}
PREFIXES: Table = {
    "galore_": ignored("belongs to use_galore."),
    "apollo_": ignored("belongs to use_apollo."),
    "badam_": ignored("belongs to use_badam."),
    "fp8_": ignored("belongs to fp8."),
    "asft_": ignored("belongs to use_asft_loss."),
    "oft_": refused("give method oft with method_options."),
    "export_": ignored("Lathe exports a finished run: lathe export."),
    "infer_": ignored("Lathe serves nothing here."),
    "swanlab_": ignored("Lathe keeps every metric itself."),
    "use_swanlab": ignored("Lathe keeps every metric itself."),
    "ppo_": refused("Lathe has no PPO."),
    "tensor_model_parallel": refused("ZeRO-3 or FSDP is the nearest."),
    "pipeline_model_parallel": refused("ZeRO-3 or FSDP is the nearest."),
    "expert_model_parallel": refused("ZeRO-3 or FSDP is the nearest."),
    "sequence_parallel": refused("set sequence_parallel_size."),
    "use_distributed_optimizer": ignored("ZeRO says this."),
    "overlap_": ignored(IN_LATHE),
    "bias_activation_fusion": ignored(IN_LATHE),
    "apply_rope_fusion": ignored(IN_LATHE),
    "kt_": refused("Lathe does not use KTransformers."),
    "use_kt": refused("Lathe does not use KTransformers."),
}
