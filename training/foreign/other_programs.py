"""Keys of PEFT's adapter_config.json and of an FSDP section in a file of its own."""

from typing import Any

from training.foreign.entries import Answer, Table, Values, choice, flag, ignored, is_off, names, refused, to
from training.foreign.sharding_files import FSDP_KEYS, from_fsdp
from training.foreign.trainer_keys import IN_LATHE


def _targets(value: Any, _: Values) -> Answer:
    return Answer({} if is_off(value) else {"target_modules": names(value)})


def _modules(value: Any, _: Values) -> Answer:
    return Answer({} if is_off(value) else {"modules_to_save": names(value)})


def _bias(value: Any, _: Values) -> Answer:
    return Answer({}, "is off.") if value in (None, "none") else Answer(None, "Lathe trains no biases with LoRA.")


FSDP: Table = dict.fromkeys(
    (f"{start}{name}" for start in ("", "fsdp_") for name in FSDP_KEYS), lambda _, values: Answer(from_fsdp(values))
)
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
