"""Which weights a method trains, and how many, from the model's shape. No torch."""

from training.config.choices import Method
from training.config.name_values import as_names
from training.config.peft_methods import HEADS, is_pattern, options, pattern_matches, refused_targets, usual_targets
from training.config.run_config import RunConfig
from training.model_info.shape import Linear, ModelShape, Stack
from training.tables import Otherwise

_TABLES = {"embed_tokens", "wte", "shared", "word_embeddings", "embed_in"}
_OFT_BLOCK = 32
"""The default of PEFT's option `oft_block_size`."""
_RANKS = Otherwise(("r", 8), {Method.VERA: ("r", 256), Method.ADALORA: ("init_r", 12)})
"""The option of methods that has their rank, and its default in PEFT."""

_PLACES = (
    "model.layers.",
    "transformer.h.",
    "model.decoder.layers.",
    "gpt_neox.layers.",
    "decoder.block.",
    "encoder.block.",
)
"""Where the layers of families are."""


def adapted(config: RunConfig, shape: ModelShape) -> frozenset[str]:
    """The names, within a layer, of the linear modules with an adapter."""
    if not config.method.adapts:
        return frozenset()
    places = [(linear, stack.place) for stack in shape.stacks for linear in stack.linears]
    return frozenset(linear.name for linear, place in places if _matches(config, shape, linear, place))


def count(config: RunConfig, shape: ModelShape) -> tuple[int, int]:
    """(trained weights, weights that the method adds to the model).

    Exact for full fine-tuning, LoRA, DoRA, IA3, LoHa, VeRA, OFT and AdaLoRA; other methods count as LoRA with their rank, or 8.
    """
    saved = _saved(config, shape) + (shape.scores if config.method.adapts else 0)
    if not config.method.adapts:
        if config.trainable_layers:
            last = shape.stacks[-1]
            return min(config.trainable_layers, last.layers) * last.layer_parameters + saved, 0
        return shape.parameters - shape.unused, 0
    if shape.all_linear and config.method.is_lora and not config.use_dora and _takes_all(config, shape):
        return config.lora_r * shape.all_linear + saved, config.lora_r * shape.all_linear + saved
    places = [(stack.layers, linear, stack.place) for stack in shape.stacks for linear in stack.linears]
    places += [(1, linear, "") for linear in shape.outside]
    added = sum(
        count * _adapter(config, linear) for count, linear, place in places if _matches(config, shape, linear, place)
    )
    return added + saved, added + saved


def adapts_experts(config: RunConfig, shape: ModelShape) -> bool:
    """True if an adapter of all linear modules is also on fused experts, of which the class trains more than its linear modules."""
    linears = [(stack.layers, linear) for stack in shape.stacks for linear in stack.linears]
    linears += [(1, linear) for linear in shape.outside]
    modules = sum(count * (linear.inputs + linear.outputs) for count, linear in linears)
    return config.method.is_lora and _takes_all(config, shape) and shape.all_linear > modules


def trains_tables(config: RunConfig) -> bool:
    """True if the embeddings train, as they do in full fine-tuning of all layers."""
    return not config.method.adapts and not config.trainable_layers


def trains_head(config: RunConfig) -> bool:
    """True if the weight of the head is trained."""
    whole = config.method is Method.FULL and not config.trainable_layers
    return whole or not set(HEADS).isdisjoint(as_names(config.modules_to_save))


def ties_head(config: RunConfig, shape: ModelShape) -> bool:
    """True if embeddings and head share a weight, whose gradients are summed."""
    return config.task.traits.generates and not shape.head


def trained_matrices(config: RunConfig, shape: ModelShape) -> list[int]:
    """The elements of each matrix that full fine-tuning trains, in the model's order; none with an adapter."""
    if config.method.adapts:
        return []
    if config.trainable_layers:
        last = shape.stacks[-1]
        return min(config.trainable_layers, last.layers) * layer_matrices(last)
    layers = [size for stack in shape.stacks for size in stack.layers * layer_matrices(stack)]
    return [size for size in (shape.table, shape.positions, *layers, shape.head) if size]


def layer_matrices(stack: Stack) -> list[int]:
    """The elements of each matrix of a layer. Fused experts are two tensors: gate with up, and down."""
    experts = [_gate_and_up(stack), stack.others // 3] if stack.experts else []
    return [linear.inputs * linear.outputs for linear in stack.linears] + experts


def split_experts(shape: ModelShape) -> int:
    """The elements of fused experts that files hold as two tensors."""
    return sum(stack.layers * _gate_and_up(stack) for stack in shape.stacks if stack.experts)


def _gate_and_up(stack: Stack) -> int:
    return stack.others * 2 // 3


def _adapter(config: RunConfig, linear: Linear) -> int:
    if config.method is Method.IA3:
        ends_mlp = linear.name.endswith(("down_proj", "c_proj", "fc2", "wo", "dense_4h_to_h"))
        return linear.inputs if ends_mlp else linear.outputs
    if config.method is Method.OFT:
        block = rotated_block(config, linear.inputs)
        shares = options(config.method, config.method_options).get("block_share")
        return (block if shares else linear.inputs) * (block - 1) // 2
    rank = adapter_rank(config)
    if config.method is Method.VERA:
        return rank + linear.outputs
    if config.method is Method.LOHA:
        return 2 * rank * (linear.inputs + linear.outputs)
    if config.method is Method.ADALORA:
        return rank * (linear.inputs + linear.outputs + 1)
    scales = linear.outputs if config.method.is_lora and config.use_dora else 0
    return rank * (linear.inputs + linear.outputs) + scales


def adapter_rank(config: RunConfig) -> int:
    """The rank of a method's matrices when training begins; 8 if it has none."""
    if config.method.is_lora:
        return config.lora_r
    name, default = _RANKS[config.method]
    return int(options(config.method, config.method_options).get(name) or default)


def rotated_block(config: RunConfig, inputs: int) -> int:
    """How many of a linear module's `inputs` OFT rotates together: a divisor near the option `oft_block_size`, or as `r` asks."""
    chosen = options(config.method, config.method_options)
    divisors = [size for size in range(1, inputs + 1) if inputs % size == 0]
    if number := int(chosen.get("r") or 0):
        return inputs // min(divisors, key=lambda size: abs(size - number))
    block = int(chosen.get("oft_block_size") or _OFT_BLOCK)
    return min(divisors, key=lambda size: abs(size - block))


def fixed_weights(config: RunConfig, shape: ModelShape) -> int:
    """The weights of VeRA's two fixed matrices, which all layers share."""
    if config.method is not Method.VERA:
        return 0
    adapts = adapted(config, shape)
    linears = [one for stack in shape.stacks for one in stack.linears if one.name in adapts]
    widest = max((one.inputs for one in linears), default=0) + max((one.outputs for one in linears), default=0)
    return adapter_rank(config) * widest


def norm_bytes(config: RunConfig, shape: ModelShape, compute: int, *, casts: bool, upcasts: bool) -> float:
    """The bytes that DoRA computes to get the norms of its largest weight (peft/tuners/lora/dora.py).

    They are an identity matrix, the product of the adapter's matrices, and its scaled sum with the weight. Autocast (`casts`) keeps
    a 16-bit identity matrix and computes the rest in fp32; an adapter that `upcasts` also copies the weight to fp32.
    """
    if not (config.method.is_lora and config.use_dora):
        return 0.0
    adapts, largest = adapted(config, shape), 0
    for one in (linear for stack in shape.stacks for linear in stack.linears if linear.name in adapts):
        identity, weight = one.inputs**2, one.inputs * one.outputs
        if casts:
            size = max((4 + 2) * identity, 2 * identity + 4 * 4 * weight)
        else:
            size = 4 * (identity + 4 * weight) if upcasts else compute * (identity + 3 * weight)
        largest = max(largest, size)
    return float(largest)


def share_in_small_tensors(config: RunConfig, shape: ModelShape, elements: int) -> float:
    """The share of an adapter's weights that are in tensors of fewer elements."""
    if not config.method.is_lora:
        return float(config.method in (Method.IA3, Method.VERA, Method.LN_TUNING))
    adapts = adapted(config, shape)
    linears = [(stack.layers, one) for stack in shape.stacks for one in stack.linears if one.name in adapts]
    sizes = [(count, config.lora_r * width) for count, one in linears for width in (one.inputs, one.outputs)]
    small = sum(count * size for count, size in sizes if size < elements)
    return small / max(sum(count * size for count, size in sizes), 1)


def _saved(config: RunConfig, shape: ModelShape) -> int:
    names = set(as_names(config.modules_to_save))
    return shape.table * bool(names & _TABLES) + (shape.head or shape.table) * bool(names & {*HEADS})


def _takes_all(config: RunConfig, shape: ModelShape) -> bool:
    auto = config.target_modules == "auto" and usual_targets(config.method, shape.model_type) is None
    return auto or config.target_modules == "all-linear"


def _matches(config: RunConfig, shape: ModelShape, linear: Linear, place: str) -> bool:
    """True if PEFT puts an adapter on a linear module of a layer in `place`; on one outside of layers if `place` is empty."""
    targets, last = config.target_modules, linear.name.rsplit(".", 1)[-1]
    if _takes_all(config, shape):
        return last not in refused_targets(config.method, shape.model_type)
    if targets == "auto":
        return any(_ends(linear.name, name) for name in usual_targets(config.method, shape.model_type) or ())
    if is_pattern(targets):
        usual = [""] if shape.counted_by == "class" else [f"{path}0." for path in _PLACES]
        places = [f"{place}0."] if place else usual
        return any(pattern_matches(targets, f"{before}{linear.name}") for before in places)
    return any(_ends(linear.name, name) for name in as_names(targets))


def _ends(full: str, name: str) -> bool:
    return full == name or full.endswith(f".{name}")
