"""The whole weights that ZeRO-3 and FSDP gather, at the moments of a step. No torch. All numbers are bytes on one rank."""

from dataclasses import dataclass

from training.config.choices import Quantization, Strategy
from training.config.run_config import RunConfig
from training.config.sharding import MAX_LIVE_PARAMETERS, stage_3_sizes
from training.forecast.formula.trainable import adapted, adapter_rank, layer_matrices, ties_head, trains_tables
from training.model_info.shape import ModelShape
from training.rules.memory import wants_chunks


@dataclass(frozen=True)
class Gathered:
    """Bytes of whole weights on a rank of a sharded model: when a pass begins, at the last layer of the forward pass, with the
    logits and with their gradients, and in the backward passes of the last layer and of the first one."""

    at_once: float = 0.0
    in_forward: float = 0.0
    with_logits: float = 0.0
    with_gradients: float = 0.0
    in_layers: float = 0.0
    in_first: float = 0.0


def gathered_bytes(config: RunConfig, shape: ModelShape, held: float, trained: int, compute: int) -> Gathered:
    """The gathered weights of a sharded model. Only linear weights in layers are quantized."""
    outside = compute * (shape.parameters - shape.in_layers)
    per_weight = compute if config.quantized is Quantization.NONE else (held - outside) / max(shape.in_layers, 1)
    adapters = compute * trained if config.method.adapts else 0
    layer = shape.largest_layer * per_weight + adapters / shape.layers
    if config.strategy is Strategy.FSDP:
        return _gathered_by_fsdp(config, shape, layer, compute)
    whole = shape.in_layers * per_weight + outside + adapters
    return _gathered_by_zero_3(config, shape, layer, min(whole, MAX_LIVE_PARAMETERS * compute), trained, compute)


def _gathered_by_fsdp(config: RunConfig, shape: ModelShape, layer: float, compute: int) -> Gathered:
    """FSDP gathers weights into a buffer and copies them out of it. In the forward pass the buffer lives until the next weights are
    copied; in the backward pass the next ones are gathered ahead. Weights outside of layers live as long as the head needs them.
    """
    rest = float(compute * (shape.parameters - shape.in_layers - min(shape.table, shape.head)))
    if not shape.head:
        return Gathered(2 * rest + 2 * layer, 3 * layer + rest, rest, rest, 2 * layer + rest, 2 * layer + rest)
    # Its buffer is freed at the end of the model's pass, which a loss in chunks follows.
    with_logits = rest if wants_chunks(config, shape.vocab) else 2 * rest
    kept = rest if _tested(config) else 0.0  # by the tests before the first step, which have no backward pass
    first = kept + max(3 * layer, 2 * layer + compute * shape.table)
    return Gathered(first, max(3 * layer + kept, layer + 2 * rest), with_logits, rest, 2 * layer, 2 * layer)


def _gathered_by_zero_3(
    config: RunConfig, shape: ModelShape, layer: float, whole: float, trained: int, compute: int
) -> Gathered:
    """ZeRO-3 gathers weights ahead in the order of an earlier pass, and keeps up to a billion elements that a pass uses again
    (training/simulation/zero3_fetching.py). A loss in chunks gathers the head.

    That keeps all that the backward pass needs. Runs that begin with passes without a backward pass release it: in later passes
    the same modules do so again. Weights of the layers that are done by then are gathered again before the backward pass.

    If modules do not follow each other as in the pass before, no weights are gathered ahead or kept.
    """
    adapters = float(compute * trained) if config.method.adapts else 0.0
    ahead = float(compute * stage_3_sizes(shape.hidden)["stage3_prefetch_bucket_size"])
    largest = max((size for stack in shape.stacks for size in layer_matrices(stack)), default=0)
    matrix, table = float(compute * largest), float(compute * shape.table)
    head = float(compute * (shape.head or shape.table))
    saved, tied = _in_graph(config, shape, compute), ties_head(config, shape)
    in_chunks = head if wants_chunks(config, shape.vocab) else 0.0
    tables_in_backward = not config.trainable_layers and (trains_tables(config) or config.recomputes)
    embedded = table if tables_in_backward else 0.0

    if shape.encoder or _changes_order(config):
        few, logits = layer + ahead + saved + adapters, saved + adapters + in_chunks
        return Gathered(whole if shape.encoder and adapters else few, few, logits, logits, few, few)
    if not _tested(config):
        kept = whole if tables_in_backward or tied else whole - table
        if config.trainable_layers:
            kept = min(compute * trained + ahead + head * config.task.traits.generates, whole)
        return Gathered(whole, kept, kept, kept, kept, min(embedded + 2 * layer + ahead, whole))
    kept = adapters + ahead + saved
    if not config.trainable_layers:
        kept += layer * min(_layers_done_early(config, shape), shape.layers)
        kept += embedded if adapters and not tied else 0.0
    last = kept + (embedded if tied else 0.0) + (layer if config.recomputes else matrix)
    first = adapters + saved + layer + ahead + embedded
    logits = kept + in_chunks
    return Gathered(whole, layer + kept, logits, logits, min(last, whole), min(first, last, whole))


_MODULES = 6
"""Modules of a layer besides linear ones: itself, two norms, attention, MLP and its activation."""
_MODULES_OF_ADAPTER, _MODULES_OF_DORA = 4, 7
_GATHERED_BEFORE_LAYERS = 3
"""Gatherings by modules before the first layer, less those of embeddings and head."""


def _layers_done_early(config: RunConfig, shape: ModelShape) -> float:
    """The layers that are done in the forward pass when all weights are gathered.

    The pass of each module gathers the next weights, until they have as many elements as the setting for it. Weights of fewer
    elements than another setting are never released.
    """
    settings = stage_3_sizes(shape.hidden)
    most, stays = settings["stage3_prefetch_bucket_size"], settings["stage3_param_persistence_threshold"]
    adapts, rank = adapted(config, shape), adapter_rank(config)
    of_adapter = _MODULES_OF_DORA if config.method.is_lora and config.use_dora else _MODULES_OF_ADAPTER
    gatherings, modules = -float(_GATHERED_BEFORE_LAYERS), 1
    for stack in shape.stacks:
        modules = _MODULES + len(stack.linears) + of_adapter * sum(one.name in adapts for one in stack.linears)
        waiting = 0
        for linear in stack.linears:
            weights = [linear.inputs * linear.outputs // (2 if config.quantized is Quantization.NF4 else 1)]
            if linear.name in adapts:
                weights += [rank * linear.inputs, rank * linear.outputs]
            for weight in weights:
                waiting += weight if weight > stays else 0
                if waiting >= most:
                    gatherings, waiting = gatherings + stack.layers, 0
        gatherings += stack.layers * waiting / most
    return max(gatherings, 0.0) / modules


def _tested(config: RunConfig) -> bool:
    """True if a run tests its batches before the first step, in passes without a backward pass."""
    return config.task.traits.is_language_modeling


def _changes_order(config: RunConfig) -> bool:
    """True if passes of the model alternate with those of a reference that is the model without its adapter."""
    return config.task.traits.has_reference and config.method.adapts


def _in_graph(config: RunConfig, shape: ModelShape, compute: int) -> float:
    """Bytes of gathered weights that the graph keeps until the backward pass although ZeRO-3 releases them: quantized ones, and the
    experts, of which linear layers save slices, unless they are recomputed."""
    quantized = 0.0 if config.quantized is Quantization.NONE else shape.linear_weights * packed_bytes(config)
    experts = 0 if config.recomputes else sum(stack.layers * stack.others for stack in shape.stacks if stack.experts)
    return quantized + compute * experts


def packed_bytes(config: RunConfig) -> float:
    """Bytes of a quantized weight, with its share of a scale per 64."""
    return config.quantized.packed_bytes(double=config.double_quantization)
