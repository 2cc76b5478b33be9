"""The keys of a GGUF file that describe the model's shape, and its rotary positions."""

import math
from collections.abc import Iterator
from typing import Any

import gguf
import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from training.results.gguf.architectures import Architecture, refusal

# Every nth layer has full attention, if no key says otherwise.
_PATTERNS = {gguf.MODEL_ARCH.GEMMA2: 2, gguf.MODEL_ARCH.GEMMA3: 6}
_GLOBAL, _LOCAL = "full_attention", "sliding_attention"


def add_shape(writer: gguf.GGUFWriter, config: Any, architecture: Architecture) -> None:
    """Writes sizes, positions and windows of a text model's configuration."""
    heads, hidden = config.num_attention_heads, config.hidden_size
    writer.add_context_length(context_length(config, architecture))
    writer.add_embedding_length(hidden)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(heads)
    writer.add_vocab_size(config.vocab_size)
    if architecture.arch is gguf.MODEL_ARCH.GPT2:
        writer.add_feed_forward_length(config.n_inner or 4 * hidden)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
        return
    head = _head_size(config)
    writer.add_feed_forward_length(config.intermediate_size)
    if hasattr(config, "rms_norm_eps"):
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    else:
        writer.add_layer_norm_eps(config.layer_norm_eps)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head)
    writer.add_value_length(head)
    _add_positions(writer, config)
    for cap in ("attn_logit_softcapping", "final_logit_softcapping"):
        if value := getattr(config, cap, None):
            getattr(writer, f"add_{cap}")(value)
    if architecture.windows:
        _add_windows(writer, config, architecture.arch)


def context_length(config: Any, architecture: Architecture) -> int:
    """The tokens of context in which llama.cpp computes what transformers computes.

    Where llama.cpp ignores sliding windows, contexts longer than the window would differ.
    """
    window = None if architecture.windows else getattr(config, "sliding_window", None)
    return int(min(config.max_position_embeddings, window or config.max_position_embeddings))


def _add_windows(writer: gguf.GGUFWriter, config: Any, arch: gguf.MODEL_ARCH) -> None:
    """Writes the window, and which layers have it unless it is all but every nth."""
    local = [kind == "sliding_attention" for kind in config.layer_types]
    if any(local):
        writer.add_sliding_window(config.sliding_window)
        if local != [bool((layer + 1) % _PATTERNS[arch]) for layer in range(len(local))]:
            writer.add_sliding_window_pattern(local)
    elif arch is gguf.MODEL_ARCH.GEMMA2:  # llama.cpp has no Gemma 2 without windows
        writer.add_sliding_window(config.max_position_embeddings)


def _rope(config: Any) -> dict[str, Any]:
    """transformers' rotary parameters of the layers with full attention."""
    found = getattr(config, "rope_parameters", None) or {}
    return dict(found.get(_GLOBAL, found))


def _rotated(config: Any) -> int:
    return int(_head_size(config) * _rope(config).get("partial_rotary_factor", 1.0))


def _head_size(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _add_positions(writer: gguf.GGUFWriter, config: Any) -> None:
    """Writes the base and scaling of rotary positions. Raises UserError if llama.cpp does not scale positions in this way."""
    rope = _rope(config)
    writer.add_rope_dimension_count(_rotated(config))
    writer.add_rope_freq_base(rope["rope_theta"])
    if local := (config.rope_parameters or {}).get(_LOCAL):
        if local.get("rope_type", "default") != "default":
            raise refusal(str(local), "scales the positions of layers with a sliding window, which is not supported.")
        writer.add_rope_freq_base_swa(local["rope_theta"])
    kind = rope.get("rope_type", "default")
    if kind not in _SCALINGS:
        raise refusal(kind, f"is a scaling of positions that llama.cpp does not have; it has {', '.join(_SCALINGS)}.")
    _SCALINGS[kind](writer, config, rope)


def factor_tensors(config: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors of factors by which frequencies are divided, (rotated values / 2), fp32."""
    rope = _rope(config)
    kind = rope.get("rope_type", "default")
    if kind == "llama3":
        frequencies, _ = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
        size = _rotated(config)
        plain = 1 / rope["rope_theta"] ** (torch.arange(0, size, 2, dtype=torch.float32) / size)
        yield "rope_freqs.weight", plain / frequencies
    if kind == "longrope":
        yield "rope_factors_long.weight", torch.tensor(rope["long_factor"], dtype=torch.float32)
        yield "rope_factors_short.weight", torch.tensor(rope["short_factor"], dtype=torch.float32)


def _default(_writer: gguf.GGUFWriter, _config: Any, _rope: dict[str, Any]) -> None:
    """Nothing to write; Llama 3's factors are a tensor."""


def _linear(writer: gguf.GGUFWriter, _config: Any, rope: dict[str, Any]) -> None:
    writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(rope["factor"])


def _yarn(writer: gguf.GGUFWriter, config: Any, rope: dict[str, Any]) -> None:
    """llama.cpp multiplies by 1 + 0.1 ln(factor), as transformers does unless the configuration names a factor."""
    original = rope["original_max_position_embeddings"]
    factor = rope.get("factor") or config.max_position_embeddings / original
    usual, (_, used) = 1 + 0.1 * math.log(factor), ROPE_INIT_FUNCTIONS["yarn"](config, torch.device("cpu"))
    if rope.get("truncate", True) is False:
        raise refusal("yarn", "with truncate: false is not supported.")
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(factor)
    writer.add_rope_scaling_orig_ctx_len(original)
    writer.add_rope_scaling_yarn_beta_fast(rope.get("beta_fast") or 32.0)
    writer.add_rope_scaling_yarn_beta_slow(rope.get("beta_slow") or 1.0)
    if not math.isclose(used, usual, rel_tol=1e-6):
        writer.add_rope_scaling_yarn_attn_factor(used / usual)


def _longrope(writer: gguf.GGUFWriter, config: Any, rope: dict[str, Any]) -> None:
    _, attention_factor = ROPE_INIT_FUNCTIONS["longrope"](config, torch.device("cpu"))
    writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)
    writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    writer.add_rope_scaling_attn_factors(attention_factor)


_SCALINGS = {"default": _default, "llama3": _default, "linear": _linear, "yarn": _yarn, "longrope": _longrope}
