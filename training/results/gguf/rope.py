"""Rotary positions: the keys and tensors that say how llama.cpp scales them as transformers does."""

import math
from collections.abc import Iterator
from typing import Any

import gguf
import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from training.results.gguf.refusal import refusal

_GLOBAL, _LOCAL = "full_attention", "sliding_attention"


def parameters(config: Any) -> dict[str, Any]:
    """transformers' rotary parameters of the layers with full attention."""
    found = getattr(config, "rope_parameters", None) or {}
    return dict(found.get(_GLOBAL, found))


def rotated(config: Any) -> int:
    """The number of rotated values of a head."""
    return int(head_size(config) * parameters(config).get("partial_rotary_factor", 1.0))


def head_size(config: Any) -> int:
    """The number of values of a head's queries and keys."""
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def add_keys(writer: gguf.GGUFWriter, config: Any) -> None:
    """Writes the base and scaling of rotary positions.

    Raises:
        UserError: llama.cpp does not scale positions in this way.
    """
    rope = parameters(config)
    writer.add_rope_dimension_count(rotated(config))
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
    rope = parameters(config)
    kind = rope.get("rope_type", "default")
    if kind == "llama3":
        frequencies, _ = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
        size = rotated(config)
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
