"""What kind of layer a module is: how it mixes tokens, its heads and widths, and its experts, from its submodules."""

from dataclasses import dataclass
from typing import Any

import torch

from training.model_info.shape import Linear, Mixer
from training.tables import only

_QUERIES = ("q_proj", "q", "query", "q_lin", "query_proj", "wq", "q_b_proj")
_KEYS = ("k_proj", "k", "key", "k_lin", "key_proj", "wk")
_FUSED = ("qkv_proj", "query_key_value", "c_attn", "Wqkv", "qkv", "kqv_proj", "in_proj_weight", "fused_qkv")


@dataclass(frozen=True)
class Widths:
    """Sizes of a layer, as `Stack` has them; `down` is the name of the linear module that ends its MLP, or empty."""

    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    gated: bool
    down: str
    latent: tuple[int, int, int]
    state: tuple[int, int]


@dataclass(frozen=True)
class Experts:
    """Experts of a layer: their number, how many a token goes through, the width of one, and that of the shared ones."""

    count: int = 0
    routed: int = 0
    intermediate: int = 0
    shared: int = 0


def mixers_of(layer: torch.nn.Module) -> tuple[Mixer, ...]:
    """Returns how a layer mixes tokens; several if it has several mixers side by side."""
    mixers = [*dict.fromkeys(kind for module in layer.modules() if (kind := _kind(module)))]
    if len(mixers) > 1 and Mixer.ATTENTION in mixers and Mixer.LATENT in mixers:
        mixers.remove(Mixer.ATTENTION)
    return tuple(mixers) or ((Mixer.NONE,) if _only_mlp(layer) else (Mixer.OTHER,))


def _kind(module: torch.nn.Module) -> Mixer | None:
    """Returns the kind of mixer that a module is by its own parameters and children."""
    own = {name for name, _ in module.named_children()} | {name for name, _ in module.named_parameters(recurse=False)}
    name = type(module).__name__.lower()
    signs = only(
        {
            Mixer.OTHER: any(part in name for part in _UNKNOWN),
            Mixer.STATE_SPACE: ("mixer" in name and "mamba" in name) or {"A_log", "in_proj", "conv1d"} <= own,
            Mixer.LATENT: bool(own & {"kv_b_proj", "kv_a_proj_with_mqa"}),
            Mixer.LINEAR: any(part in name for part in ("lightning", "deltanet", "linearattention")) or _is_linear(own),
            Mixer.CONVOLUTION: "conv" in own and bool(own & {"in_proj", "out_proj"}),
            Mixer.ATTENTION: bool(own & set(_FUSED))
            or bool(own & set(_QUERIES) and own & {*_KEYS, "kv_proj", "o_proj", "o"}),
        }
    )
    return next((kind for kind, shown in signs.items() if shown), None)


_UNKNOWN = ("rwkv", "xlstm", "rglru", "recurrentblock", "reformer", "lshself", "hyena")


def _is_linear(own: set[str]) -> bool:
    """True for the parts of linear attention with a decay and short convolutions."""
    return bool(own & {"A_log", "dt_bias", "b_proj"}) and any("conv1d" in part or part == "in_proj_qkv" for part in own)


def _only_mlp(layer: torch.nn.Module) -> bool:
    names = [name.lower() for name, _ in layer.named_modules()]
    return not any(part in name for name in names for part in ("attn", "attention", "mixer_", "recurrent", "lstm"))


def widths_of(layer: torch.nn.Module, config: Any, linears: list[Linear]) -> Widths:
    """Returns heads and widths of a layer, from its modules where they say it, else from the text model's config."""
    attention = next((module for module in layer.modules() if _kind(module) in (Mixer.ATTENTION, Mixer.LATENT)), None)
    hidden = int(getattr(config, "hidden_size", 0) or 0)
    heads = _number(config, "num_attention_heads", "n_head", "num_heads", "decoder_attention_heads") or 1
    head_dim = _number(attention, "head_dim", "head_size", "key_value_proj_dim", "qk_head_dim", "attention_head_size")
    head_dim = head_dim or _number(config, "head_dim", "d_kv", "qk_head_dim") or max(hidden // heads, 1)
    keys = next((linear.outputs for linear in linears if linear.name.rsplit(".", 1)[-1] in _KEYS), 0)
    fused = next((one.outputs for one in linears if one.name.rsplit(".", 1)[-1] in _FUSED), 0)
    kv_heads = keys // head_dim or (fused // head_dim - heads) // 2 or _number(config, "num_key_value_heads") or heads
    down = _down(linears, hidden)
    wide = [one for one in linears if one.inputs == hidden and down and _parent(one.name) == _parent(down.name)]
    gated = bool(down) and sum(one.outputs for one in wide) >= 2 * down.inputs if down else True
    latent = (
        _number(config, "q_lora_rank"), _number(config, "kv_lora_rank"), _number(config, "v_head_dim") or head_dim,
    )  # fmt: skip
    return Widths(
        heads, kv_heads, head_dim, down.inputs if down else 0, gated, down.name if down else "",
        latent if attention is not None and _kind(attention) is Mixer.LATENT else (0, 0, 0), _state(layer, config),
    )  # fmt: skip


def _down(linears: list[Linear], hidden: int) -> Linear | None:
    """Returns the widest linear module that ends an MLP: it returns to the hidden size and is no part of a mixer."""
    ends = [one for one in linears if one.outputs == hidden and one.name and not _mixes(one.name)]
    return max(reversed(ends), key=lambda one: one.inputs, default=None)


def _mixes(name: str) -> bool:
    parts = name.split(".")[:-1]
    last = name.rsplit(".", 1)[-1]
    if last in ("down_proj", "up_proj", "gate_proj"):
        return False
    mixes = any(word in part.lower() for part in parts for word in ("attn", "attention", "mamba", "mixer", "conv"))
    return mixes or last in (*_QUERIES, *_KEYS, "v_proj", "o_proj", "out_proj")


def _parent(name: str) -> str:
    return name.rpartition(".")[0]


def _state(layer: torch.nn.Module, config: Any) -> tuple[int, int]:
    """Returns the width of a state-space or linear layer's inner channels, and the size of the state of each."""
    for module in layer.modules():
        kind = _kind(module)
        if kind is Mixer.STATE_SPACE:
            width = _number(module, "intermediate_size", "mamba_expand_dim") or 2 * int(config.hidden_size)
            return width, _number(module, "ssm_state_size", "state_size", "mamba_d_state") or 16
        if kind is Mixer.LINEAR:
            keys = _number(module, "key_dim") or int(config.hidden_size)
            return keys, _number(module, "value_dim") or keys
        if kind is Mixer.CONVOLUTION:
            return int(config.hidden_size), 1
    return 0, 0


def experts_of(layer: torch.nn.Module, config: Any) -> Experts:
    """Returns the experts of a layer: stored as 3-D tensors, or as a list of modules."""
    fused = [
        parameter
        for name, parameter in layer.named_parameters()
        if parameter.ndim == 3 and "conv" not in name and "expert" in name.lower()
    ]
    lists = [
        child for name, child in layer.named_modules() if isinstance(child, torch.nn.ModuleList) and "expert" in name
    ]
    count = fused[-1].shape[0] if fused else max((len(child) for child in lists), default=0)
    if not count:
        return Experts()
    hidden = int(config.hidden_size)
    width = fused[-1].numel() // (count * hidden) if fused else 0
    return Experts(
        int(count), min(_number(config, "num_experts_per_tok", "moe_topk", "top_k_experts", "moe_k", "top_k") or 1, int(count)),
        width or _number(config, "moe_intermediate_size", "expert_ffn_dim", "intermediate_size"), _shared(layer),
    )  # fmt: skip


def _shared(layer: torch.nn.Module) -> int:
    """Returns the width of the experts that every token goes through."""
    for name, module in layer.named_modules():
        if "shared" in name and isinstance(down := getattr(module, "down_proj", None), torch.nn.Linear):
            return down.in_features
    return 0


def _number(source: Any, *names: str) -> int:
    """Returns the first of these attributes that is a positive number; 0 if there is none."""
    for name in names:
        try:
            value = getattr(source, name, None)
        except (RuntimeError, ValueError):  # differs from layer to layer
            continue
        if isinstance(value, list | tuple):
            value = max((one for one in value if isinstance(one, int)), default=None)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return 0
