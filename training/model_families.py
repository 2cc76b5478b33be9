"""The shape of a model from its config.json alone, by families of architectures. No torch.

What is here follows from each architecture's published layout, and is held to transformers' own classes by the tests.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from training.model_shape import Linear, ModelShape, ShapeError, Stack

Values = dict[str, Any]


def read_shape(config: Path) -> ModelShape:
    """The shape in a config.json.

    Raises:
        ShapeError: it cannot be read, or does not say how large the model is.
    """
    try:
        values = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ShapeError(f"{config.name} cannot be read ({error}).", "Give a model's config.json.") from None
    if not isinstance(values, dict):
        raise ShapeError(f"{config.name} holds no object.", "Give a model's config.json.")
    return shape_of(values)


def shape_of(values: Values) -> ModelShape:
    """The shape that a config.json's values describe.

    Raises:
        ShapeError: they do not say how large the model is.
    """
    nested = values.get("text_config")  # models that see or hear keep their language part here
    text = {**nested} if isinstance(nested, dict) else values
    kind = str(text.get("model_type") or values.get("model_type") or "")
    make = FAMILIES.get(kind) or (_t5 if values.get("is_encoder_decoder") and "d_kv" in text else _llama)
    try:
        return replace(make(text), model_type=kind, exact=kind in FAMILIES)
    except (KeyError, TypeError, ZeroDivisionError, ValueError) as error:
        reason = f"lacks {error}" if isinstance(error, KeyError) else f"cannot be understood ({error})"
        raise ShapeError(
            f"config.json of {kind or 'an unknown architecture'} {reason}.", "Give a whole config.json."
        ) from None


def _first(values: Values, *names: str) -> int:
    """The first of several names for one thing that says anything."""
    for name in names:
        if values.get(name) is not None:
            return int(values[name])
    raise KeyError(names[0])


def _llama(values: Values) -> ModelShape:
    """Llama and those laid out as it: RMS norms, rotary positions, a gated MLP, keys shared between heads; experts too."""
    hidden = _first(values, "hidden_size", "n_embd", "d_model")
    heads = _first(values, "num_attention_heads", "n_head", "num_heads")
    kind = str(values.get("model_type", ""))
    kv_heads = int(values.get("num_key_value_heads") or heads)
    head_dim = int(values.get("head_dim") or hidden // heads)
    qkv_bias = bool(values.get("attention_bias")) or kind in ("qwen2", "qwen2_moe")
    o_bias = bool(values.get("attention_bias")) and kind not in ("qwen2", "qwen2_moe")
    linears = [
        Linear("self_attn.q_proj", hidden, heads * head_dim, qkv_bias),
        Linear("self_attn.k_proj", hidden, kv_heads * head_dim, qkv_bias),
        Linear("self_attn.v_proj", hidden, kv_heads * head_dim, qkv_bias),
        Linear("self_attn.o_proj", heads * head_dim, hidden, o_bias),
    ]
    qk_norm = kind.startswith(("qwen3", "gemma3"))
    norms = 4 if kind in ("gemma2", "gemma3_text", "gemma3") else 2
    others = norms * hidden + (2 * head_dim if qk_norm else 0)
    experts = int(values.get("num_local_experts") or values.get("num_experts") or values.get("n_routed_experts") or 0)
    routed = int(values.get("num_experts_per_tok") or 0) if experts else 0
    wide = _first(values, "intermediate_size", "n_inner", "ffn_dim")
    if experts:
        wide = int(values.get("moe_intermediate_size") or wide)
        others += experts * 3 * hidden * wide + experts * hidden
        shared = int(values.get("shared_expert_intermediate_size") or 0)
        if shared:
            linears += _mlp("mlp.shared_expert", hidden, shared)
            others += hidden
    else:
        linears += _mlp("mlp", hidden, wide, bias=bool(values.get("mlp_bias")))
    stack = Stack(
        layers=_first(values, "num_hidden_layers", "n_layer", "num_layers"),
        linears=tuple(linears), heads=heads, kv_heads=kv_heads, head_dim=head_dim, intermediate=wide, gated=True,
        others=others, qk_norm=qk_norm, experts=experts, routed=routed,
    )  # fmt: skip
    vocab = _first(values, "vocab_size")
    tied = bool(values.get("tie_word_embeddings", kind.startswith("gemma")))
    return ModelShape(
        kind, hidden, vocab, stack, None, vocab * hidden, 0, 0 if tied else vocab * hidden, hidden, rms_norm=True,
        activation=str(values.get("hidden_act") or values.get("hidden_activation") or "silu"),
        dropout=float(values.get("attention_dropout") or 0),
    )  # fmt: skip


def _mlp(name: str, hidden: int, wide: int, *, bias: bool = False) -> list[Linear]:
    return [
        Linear(f"{name}.gate_proj", hidden, wide, bias),
        Linear(f"{name}.up_proj", hidden, wide, bias),
        Linear(f"{name}.down_proj", wide, hidden, bias),
    ]


def _phi3(values: Values) -> ModelShape:
    """Phi-3: Llama's layer with queries, keys and values in one module, and gate and up in another."""
    shape = _llama({**values, "attention_bias": False})
    old = shape.decoder
    queries = old.heads * old.head_dim
    linears = (
        Linear("self_attn.qkv_proj", shape.hidden, queries + 2 * old.kv_heads * old.head_dim),
        Linear("self_attn.o_proj", queries, shape.hidden),
        Linear("mlp.gate_up_proj", shape.hidden, 2 * old.intermediate),
        Linear("mlp.down_proj", old.intermediate, shape.hidden),
    )
    return replace(shape, decoder=replace(old, linears=linears))


def _layer_norms(
    values: Values, attention: list[Linear], mlp: tuple[str, str], *, positions: int, tied: bool, norms: int = 2,
    others: int = 0,
) -> ModelShape:  # fmt: skip
    """Models with layer norms, biases and a plain MLP: GPT-2, OPT, GPT-NeoX, BLOOM."""
    hidden = _first(values, "hidden_size", "n_embd", "d_model")
    heads = _first(values, "num_attention_heads", "n_head", "num_heads")
    wide = int(values.get("n_inner") or values.get("intermediate_size") or values.get("ffn_dim") or 4 * hidden)
    linears = (*attention, Linear(mlp[0], hidden, wide, bias=True), Linear(mlp[1], wide, hidden, bias=True))
    stack = Stack(
        _first(values, "num_hidden_layers", "n_layer", "num_layers"), linears, heads, heads, hidden // heads, wide,
        gated=False, others=norms * 2 * hidden,
    )  # fmt: skip
    vocab = _first(values, "vocab_size")
    act = str(values.get("activation_function") or values.get("hidden_act") or "gelu_new")
    drop = max((float(values.get(name) or 0) for name in _DROPOUTS), default=0.0)
    if "resid_pdrop" not in values and str(values.get("model_type")) == "gpt2":
        drop = 0.1  # what GPT-2's configuration says where a file is silent
    return ModelShape(
        "", hidden, vocab, stack, None, vocab * hidden, positions * hidden, 0 if tied else vocab * hidden,
        2 * hidden + others, rms_norm=False, activation=act, dropout=drop,
    )  # fmt: skip


_DROPOUTS = ("resid_pdrop", "attn_pdrop", "attention_dropout", "hidden_dropout", "dropout")


def _gpt2(values: Values) -> ModelShape:
    hidden = _first(values, "n_embd", "hidden_size")
    attention = [Linear("attn.c_attn", hidden, 3 * hidden, bias=True), Linear("attn.c_proj", hidden, hidden, bias=True)]
    return _layer_norms(
        values, attention, ("mlp.c_fc", "mlp.c_proj"), positions=int(values.get("n_positions") or 1024),
        tied=bool(values.get("tie_word_embeddings", True)),
    )  # fmt: skip


def _opt(values: Values) -> ModelShape:
    hidden = _first(values, "hidden_size")
    names = ("q_proj", "k_proj", "v_proj", "out_proj")
    attention = [Linear(f"self_attn.{name}", hidden, hidden, bias=True) for name in names]
    return _layer_norms(
        values, attention, ("fc1", "fc2"), positions=int(values.get("max_position_embeddings") or 2048) + 2,
        tied=bool(values.get("tie_word_embeddings", True)),
    )  # fmt: skip


def _gpt_neox(values: Values) -> ModelShape:
    hidden = _first(values, "hidden_size")
    attention = [
        Linear("attention.query_key_value", hidden, 3 * hidden, bias=True),
        Linear("attention.dense", hidden, hidden, bias=True),
    ]
    mlp = ("mlp.dense_h_to_4h", "mlp.dense_4h_to_h")
    return _layer_norms(values, attention, mlp, positions=0, tied=bool(values.get("tie_word_embeddings", False)))


def _bloom(values: Values) -> ModelShape:
    hidden = _first(values, "hidden_size", "n_embed")
    attention = [
        Linear("self_attention.query_key_value", hidden, 3 * hidden, bias=True),
        Linear("self_attention.dense", hidden, hidden, bias=True),
    ]
    mlp = ("mlp.dense_h_to_4h", "mlp.dense_4h_to_h")
    tied = bool(values.get("tie_word_embeddings", True))
    given = {**values, "hidden_size": hidden, "hidden_act": "gelu_new"}
    return _layer_norms(given, attention, mlp, positions=0, tied=tied, others=2 * hidden)  # it also norms embeddings


def _t5(values: Values) -> ModelShape:
    """T5, mT5, Flan-T5, mT0: an encoder and a decoder that also attends to it, position biases in the first layer of each."""
    hidden, heads, size = _first(values, "d_model"), _first(values, "num_heads"), _first(values, "d_kv")
    wide, vocab = _first(values, "d_ff"), _first(values, "vocab_size")
    act = str(values.get("feed_forward_proj") or "relu")
    gated = act.startswith("gated-")

    def stack(layers: int, *, cross: bool) -> Stack:
        blocks = ["layer.0.SelfAttention", *(["layer.1.EncDecAttention"] if cross else [])]
        last = f"layer.{len(blocks)}.DenseReluDense"
        linears = [
            linear
            for block in blocks
            for linear in (
                *(Linear(f"{block}.{name}", hidden, heads * size) for name in "qkv"),
                Linear(f"{block}.o", heads * size, hidden),
            )
        ]
        ups = ("wi_0", "wi_1") if gated else ("wi",)
        linears += [Linear(f"{last}.{name}", hidden, wide) for name in ups] + [Linear(f"{last}.wo", wide, hidden)]
        norms = (len(blocks) + 1) * hidden
        return Stack(layers, tuple(linears), heads, heads, size, wide, gated, norms, cross=cross)

    encoder = stack(_first(values, "num_layers"), cross=False)
    decoder = stack(_first(values, "num_decoder_layers", "num_layers"), cross=True)
    tied = bool(values.get("tie_word_embeddings", True))
    biases = 2 * int(values.get("relative_attention_num_buckets") or 32) * heads
    return ModelShape(
        "", hidden, vocab, decoder, encoder, vocab * hidden, 0, 0 if tied else vocab * hidden, 2 * hidden + biases,
        rms_norm=True, activation=act.removeprefix("gated-"), dropout=float(values.get("dropout_rate", 0.1)),
    )  # fmt: skip


FAMILIES: dict[str, Callable[[Values], ModelShape]] = {
    **dict.fromkeys(
        ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "granite", "smollm3"), _llama
    ),
    **dict.fromkeys(("mixtral", "qwen2_moe", "qwen3_moe"), _llama),
    **dict.fromkeys(("t5", "mt5"), _t5),
    "phi3": _phi3,
    "gpt2": _gpt2,
    "opt": _opt,
    "gpt_neox": _gpt_neox,
    "bloom": _bloom,
}
"""Architectures whose counts are held to transformers' own classes by the tests."""
