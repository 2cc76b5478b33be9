"""Small random models of the classes that transformers has, from its configuration classes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

TASKS = {"causal": "sft", "seq2seq": "seq2seq", "classification": "classification"}
VOCABULARY = 96
_SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "max_position_embeddings": 128, "num_experts": 4, "n_routed_experts": 4, "num_local_experts": 4,
    "num_experts_per_tok": 2, "sliding_window": 8, "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8, "v_head_dim": 16, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    "mamba_d_state": 16, "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_d_ssm": 128,
    "mamba_num_heads": 8, "mamba_head_dim": 16, "n_groups": 1, "ssm_state_size": 16, "state_size": 16, "expand": 2,
    "time_step_rank": 4, "d_model": 64,
    "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "d_ff": 96, "d_kv": 16, "num_layers": 2, "num_decoder_layers": 2,
    "num_heads": 4, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128, "n_inner": None, "ffn_dim": 96,
    "word_embed_proj_dim": 64, "vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 8,
    "num_kv_shared_layers": 0, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 0,
    "dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0, "hidden_dropout": 0.0, "resid_pdrop": 0.0,
    "attn_pdrop": 0.0, "embd_pdrop": 0.0, "dropout_rate": 0.0, "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0, "conv_dim": 64, "block_ff_dim": 96, "rotary_dim": 8,
}  # fmt: skip
_PATTERNS: dict[str, Any] = {
    "attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1,
    "attn_layer_indices": [1], "full_attn_idxs": [1], "attention_types": [[["global", "local"], 1]], "router_topk": 1,
    "block_types": ["recurrent", "attention"],
}  # fmt: skip
"""Settings that choose the kinds of layers, where a configuration has no `layer_types`."""


@dataclass(frozen=True)
class Family:
    """A model type with a class for a kind of task: causal, seq2seq or classification."""

    kind: str
    model_type: str

    @property
    def task(self) -> str:
        return TASKS[self.kind]


def families(*kinds: str) -> Iterator[Family]:
    """Yields the installed transformers' model types for these kinds of tasks; each class once."""
    from transformers.models.auto import modeling_auto as auto

    named = {
        "causal": auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        "seq2seq": auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
        "classification": auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    }
    for kind in kinds or tuple(named):
        for model_type in named[kind]:
            yield Family(kind, model_type)


def small(model_type: str) -> Any:
    """Returns a configuration with few and narrow layers, with the pattern of layers of the default one."""
    from transformers import CONFIG_MAPPING

    return _shrunk(CONFIG_MAPPING[model_type])


def _shrunk(kind: Any) -> Any:
    default = kind()
    values = {name: value for name, value in (_SMALL | _PATTERNS).items() if _settable(default, name)}
    if default.model_type == "lfm2_moe":
        # Its published models have this pattern, which the class does not have by default.
        values["layer_types"] = ["conv", "full_attention"]
    if default.model_type in _ONE_EXPERT:
        values["num_experts_per_tok"] = 1
    if "kv_lora_rank" in values and "head_dim" in values:
        # Latent attention rotates only a part of each head, and has keys for each head.
        values |= {"head_dim": values["qk_rope_head_dim"], "num_key_value_heads": values["num_attention_heads"]}
    distinct = list(dict.fromkeys(default.layer_types or [])) if _settable(default, "layer_types") else []
    if len(distinct) > 1:
        values |= {"num_hidden_layers": max(2, len(distinct)), "layer_types": (distinct * 2)[: max(2, len(distinct))]}
    for name in kind.sub_configs:
        part = getattr(default, name, None)
        if hasattr(part, "to_dict"):
            values[name] = _part(type(part))
    return kind(**values)


def _part(kind: Any) -> dict[str, Any]:
    """Returns a part of a configuration, such as that of a vision tower; in its full size if it takes no small one."""
    try:
        values: dict[str, Any] = _shrunk(kind).to_dict()
    except Exception:
        values = kind().to_dict()
    return values


def _settable(default: Any, name: str) -> bool:
    """True if a configuration has a value of this name that can be given."""
    if name not in default.to_dict() and name not in default.attribute_map:
        return False
    known = getattr(type(default), default.attribute_map.get(name, name), None)
    return not (isinstance(known, property) and known.fset is None)


_ONE_EXPERT = ("zaya", "llama4_text", "switch_transformers")


def on_meta(config: Any, kind: str) -> Any:
    """Returns the class for a kind of task, on torch's meta device."""
    import torch

    from training.config.task import Task
    from training.models.loading import model_class

    with torch.device("meta"):
        return model_class(Task(TASKS[kind])).from_config(config)
