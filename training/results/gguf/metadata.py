"""The keys of a GGUF file that describe the model's shape."""

from typing import Any

import gguf

from training.results.gguf import rope
from training.results.gguf.architectures import Architecture

# Every nth layer has full attention, if no key says otherwise.
_PATTERNS = {gguf.MODEL_ARCH.GEMMA2: 2, gguf.MODEL_ARCH.GEMMA3: 6}


def add_shape(writer: gguf.GGUFWriter, config: Any, found: Architecture) -> None:
    """Writes sizes, positions and windows of a text model's configuration."""
    heads, hidden = config.num_attention_heads, config.hidden_size
    writer.add_context_length(context_length(config, found))
    writer.add_embedding_length(hidden)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(heads)
    writer.add_vocab_size(config.vocab_size)
    if found.arch is gguf.MODEL_ARCH.GPT2:
        writer.add_feed_forward_length(config.n_inner or 4 * hidden)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
        return
    head = rope.head_size(config)
    writer.add_feed_forward_length(config.intermediate_size)
    if hasattr(config, "rms_norm_eps"):
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    else:
        writer.add_layer_norm_eps(config.layer_norm_eps)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head)
    writer.add_value_length(head)
    rope.add_keys(writer, config)
    for cap in ("attn_logit_softcapping", "final_logit_softcapping"):
        if value := getattr(config, cap, None):
            getattr(writer, f"add_{cap}")(value)
    if found.windows:
        _add_windows(writer, config, found.arch)


def context_length(config: Any, found: Architecture) -> int:
    """The tokens of context in which llama.cpp computes what transformers computes.

    Where llama.cpp ignores sliding windows, contexts longer than the window would differ.
    """
    window = None if found.windows else getattr(config, "sliding_window", None)
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
