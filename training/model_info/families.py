"""Architectures: their shape from config.json alone, one function for each family, and why their rows are padded. No torch.

Each function follows the published layout of its architectures; the tests compare it with transformers' own classes.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

from training.model_info.config_json import (
    HEADS,
    HIDDEN,
    INTERMEDIATE,
    LAYERS,
    VOCABULARY,
    ModelError,
    Values,
    dimensions_of,
    positive,
    read_config,
    text_config,
)
from training.model_info.shape import Linear, ModelShape, Stack


class UnknownLayers(ModelError):  # noqa: N818
    """No formula knows the layers of the model; its class does (training/models/layers.py)."""


def read_shape(config: Path, *, scores: int | None = None) -> ModelShape:
    """The shape of the model that a config.json describes; `scores` as in `shape_of`. Raises UnknownLayers if no formula knows
    the layers of the architecture, and ModelError if the file cannot be read, or lacks a size."""
    return shape_of(read_config(config), scores=scores)


def shape_of(values: Values, *, scores: int | None = None) -> ModelShape:
    """The shape that the values of a config.json describe; with `scores`, of a model with a head of that many outputs instead of
    the language model's (0: as many as its config.json has classes).

    Raises:
        UnknownLayers: no formula knows the layers of the architecture.
        ModelError: a size is missing.
    """
    model_type = str(values.get("model_type") or "")
    name = model_type or "an unknown architecture"
    family = FAMILIES.get(model_type)
    if family is None or text_config(values) is not values:
        raise _unknown(name)
    try:
        shape = with_limits(replace(family(values), model_type=model_type), values)
    except (KeyError, TypeError, ZeroDivisionError, ValueError) as error:
        reason = f"lacks {error}" if isinstance(error, KeyError) else f"is not consistent ({error})"
        raise ModelError(name, f"config.json {reason}.", "Give a complete config.json.") from None
    if scores is None:
        return shape
    if shape.encoder:
        raise _unknown(name)
    outputs = (scores or len(values.get("id2label") or ()) or 2) * shape.hidden
    return replace(shape, head=0, final_norms=shape.final_norms + outputs, scores=outputs)


def with_limits(shape: ModelShape, values: Values) -> ModelShape:
    """The shape with the longest sequence that its config.json allows, and whether rows of its architecture must be padded."""
    dimensions = dimensions_of(values)
    longest = dimensions.positions if dimensions else None
    return replace(shape, longest=longest, pads=bool(why_padded(shape.model_type)))


def _unknown(name: str) -> UnknownLayers:
    message = "cannot say how much memory it needs: no formula knows its layers."
    return UnknownLayers(name, message, "Forecast it on a machine with the training packages, which read its class.")


def _size(values: Values, names: tuple[str, ...]) -> int:
    """The size under the first of these names; raises KeyError if there is none."""
    size = positive(values, names)
    if size is None:
        raise KeyError(names[0])
    return size


def _llama(values: Values) -> ModelShape:
    """Llama and models with its layout: RMSNorm, rotary positions, gated MLP, grouped-query attention; also with experts."""
    hidden = _size(values, HIDDEN)
    heads = _size(values, HEADS)
    model_type = str(values.get("model_type", ""))
    kv_heads = int(values.get("num_key_value_heads") or heads)
    head_dim = int(values.get("head_dim") or hidden // heads)
    qkv_bias = bool(values.get("attention_bias")) or model_type in ("qwen2", "qwen2_moe")
    o_bias = bool(values.get("attention_bias")) and model_type not in ("qwen2", "qwen2_moe")
    linears = [
        Linear("self_attn.q_proj", hidden, heads * head_dim, qkv_bias),
        Linear("self_attn.k_proj", hidden, kv_heads * head_dim, qkv_bias),
        Linear("self_attn.v_proj", hidden, kv_heads * head_dim, qkv_bias),
        Linear("self_attn.o_proj", heads * head_dim, hidden, o_bias),
    ]
    qk_norm = model_type.startswith(("qwen3", "gemma3"))
    norms = 4 if model_type in ("gemma2", "gemma3_text", "gemma3") else 2
    others = norms * hidden + (2 * head_dim if qk_norm else 0)
    experts = int(values.get("num_local_experts") or values.get("num_experts") or values.get("n_routed_experts") or 0)
    routed = int(values.get("num_experts_per_tok") or 0) if experts else 0
    intermediate = _size(values, INTERMEDIATE)
    shared = int(values.get("shared_expert_intermediate_size") or 0) if experts else 0
    if experts:
        intermediate = int(values.get("moe_intermediate_size") or intermediate)
        others += experts * 3 * hidden * intermediate + experts * hidden
        if shared:
            linears += [Linear("mlp.shared_expert_gate", hidden, 1), *_mlp("mlp.shared_expert", hidden, shared)]
    else:
        linears += _mlp("mlp", hidden, intermediate, bias=bool(values.get("mlp_bias")))
    stack = Stack(
        layers=_size(values, LAYERS),
        linears=tuple(linears), heads=heads, kv_heads=kv_heads, head_dim=head_dim, intermediate=intermediate, gated=True,
        others=others, qk_norm=qk_norm, experts=experts, routed=routed, shared=shared,
    )  # fmt: skip
    adapted = 0
    # PEFT adapts their experts and routers as whole tensors, gate and up with twice the rank.
    if model_type in ("mixtral", "qwen3_moe"):
        fused = experts * (2 * (hidden + 2 * intermediate) + intermediate + hidden) + hidden + experts
        adapted = stack.layers * (fused + sum(linear.inputs + linear.outputs for linear in linears))
    vocab = _size(values, VOCABULARY)
    tied = bool(values.get("tie_word_embeddings", model_type.startswith("gemma")))
    return ModelShape(
        model_type, hidden, vocab, stack, None, vocab * hidden, 0, 0 if tied else vocab * hidden, hidden, rms_norm=True,
        activation=str(values.get("hidden_act") or values.get("hidden_activation") or "silu"),
        dropout=float(values.get("attention_dropout") or 0), all_linear=adapted,
    )  # fmt: skip


def _mlp(name: str, hidden: int, intermediate: int, *, bias: bool = False) -> list[Linear]:
    return [
        Linear(f"{name}.gate_proj", hidden, intermediate, bias),
        Linear(f"{name}.up_proj", hidden, intermediate, bias),
        Linear(f"{name}.down_proj", intermediate, hidden, bias),
    ]


def _phi3(values: Values) -> ModelShape:
    """Phi-3: Llama's layer with one module for queries, keys and values, and one for gate and up."""
    shape = _llama({**values, "attention_bias": False})
    decoder = shape.decoder
    queries = decoder.heads * decoder.head_dim
    linears = (
        Linear("self_attn.qkv_proj", shape.hidden, queries + 2 * decoder.kv_heads * decoder.head_dim),
        Linear("self_attn.o_proj", queries, shape.hidden),
        Linear("mlp.gate_up_proj", shape.hidden, 2 * decoder.intermediate),
        Linear("mlp.down_proj", decoder.intermediate, shape.hidden),
    )
    return replace(shape, decoder=replace(decoder, linears=linears))


def _layer_norms(
    values: Values, attention: dict[str, int], mlp: tuple[str, str], *, positions: int = 0, tied: bool = True,
    embedding_norm: bool = False,
) -> ModelShape:  # fmt: skip
    """Models with LayerNorm, biases and an ungated MLP: GPT-2, OPT, GPT-NeoX, BLOOM. `attention` has the outputs of each module as
    multiples of the hidden size, `tied` is the default of tie_word_embeddings."""
    hidden, heads, vocab = _size(values, HIDDEN), _size(values, HEADS), _size(values, VOCABULARY)
    intermediate = positive(values, INTERMEDIATE) or 4 * hidden
    linears = (
        *(Linear(name, hidden, times * hidden, bias=True) for name, times in attention.items()),
        Linear(mlp[0], hidden, intermediate, bias=True),
        Linear(mlp[1], intermediate, hidden, bias=True),
    )
    norm = 2 * hidden
    stack = Stack(
        _size(values, LAYERS), linears, heads, heads, hidden // heads, intermediate, gated=False, others=2 * norm
    )
    usual = _ACTIVATIONS.get(str(values.get("model_type")), "gelu_new")
    act = str(values.get("activation_function") or values.get("hidden_act") or usual)
    dropout = max((float(values.get(name) or 0) for name in _DROPOUTS), default=0.0)
    if "resid_pdrop" not in values and str(values.get("model_type")) == "gpt2":
        dropout = 0.1  # transformers' default for GPT-2
    ties = bool(values.get("tie_word_embeddings", tied))
    return ModelShape(
        "", hidden, vocab, stack, None, vocab * hidden, positions * hidden, 0 if ties else vocab * hidden,
        norm + norm * embedding_norm, rms_norm=False, activation=act, dropout=dropout,
        attends_with_dropout=values.get("model_type") == "gpt2" or bool(values.get("attention_dropout")),
    )  # fmt: skip


_ACTIVATIONS = {"gpt_neox": "gelu", "opt": "relu"}
"""What transformers takes if config.json names no activation."""
_DROPOUTS = ("resid_pdrop", "attn_pdrop", "attention_dropout", "hidden_dropout", "dropout")


def _gpt2(values: Values) -> ModelShape:
    attention, positions = {"attn.c_attn": 3, "attn.c_proj": 1}, int(values.get("n_positions") or 1024)
    return _layer_norms(values, attention, ("mlp.c_fc", "mlp.c_proj"), positions=positions)


def _opt(values: Values) -> ModelShape:
    attention = {f"self_attn.{name}": 1 for name in ("q_proj", "k_proj", "v_proj", "out_proj")}
    positions = int(values.get("max_position_embeddings") or 2048) + 2
    return _layer_norms(values, attention, ("fc1", "fc2"), positions=positions)


def _gpt_neox(values: Values) -> ModelShape:
    attention = {"attention.query_key_value": 3, "attention.dense": 1}
    return _layer_norms(values, attention, ("mlp.dense_h_to_4h", "mlp.dense_4h_to_h"), tied=False)


def _bloom(values: Values) -> ModelShape:
    attention = {"self_attention.query_key_value": 3, "self_attention.dense": 1}
    saves_input = {**values, "hidden_act": "gelu"}  # its own function
    return _layer_norms(saves_input, attention, ("mlp.dense_h_to_4h", "mlp.dense_4h_to_h"), embedding_norm=True)


def _t5(values: Values) -> ModelShape:
    """T5, mT5, Flan-T5, mT0: encoder and decoder with cross-attention; position biases in the first layer of each."""
    hidden, heads, size = _size(values, HIDDEN), _size(values, HEADS), _size(values, ("d_kv",))
    intermediate, vocab = _size(values, INTERMEDIATE), _size(values, VOCABULARY)
    act = str(values.get("feed_forward_proj") or "relu")
    gated = act.startswith("gated-")
    activation = "gelu_new" if act == "gated-gelu" else act.removeprefix("gated-")

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
        inputs = ("wi_0", "wi_1") if gated else ("wi",)
        linears += [Linear(f"{last}.{name}", hidden, intermediate) for name in inputs] + [
            Linear(f"{last}.wo", intermediate, hidden)
        ]
        norms = (len(blocks) + 1) * hidden
        return Stack(layers, tuple(linears), heads, heads, size, intermediate, gated, norms, cross=cross)

    encoder = stack(_size(values, LAYERS), cross=False)
    decoder = stack(_size(values, ("num_decoder_layers", *LAYERS)), cross=True)
    tied = bool(values.get("tie_word_embeddings", True))
    biases = 2 * int(values.get("relative_attention_num_buckets") or 32) * heads
    return ModelShape(
        "", hidden, vocab, decoder, encoder, vocab * hidden, 0, 0 if tied else vocab * hidden, 2 * hidden + biases,
        rms_norm=True, activation=activation, dropout=float(values.get("dropout_rate", 0.1)),
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
"""Architectures whose parameter counts the tests compare with transformers' own classes."""

CATALOGUE = Path(__file__).with_name("families.json")
"""Why the rows of an architecture are padded, by model type; empty where a batch without padding keeps them apart.

`python -m benchmarks.families --write` writes it: it tries each class of transformers with a random model. A run tries its own
model again before the first step (training/batches/layout.py).
"""


@cache
def padding_reasons() -> dict[str, str]:
    """The catalogue, without the architectures that were not tried."""
    reasons: dict[str, str] = json.loads(CATALOGUE.read_text(encoding="utf-8"))
    return reasons


def why_padded(model_type: str) -> str:
    """Why the rows of a model are padded; empty if they are not, or if it is unknown."""
    return padding_reasons().get(model_type, "")
