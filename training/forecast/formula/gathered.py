"""The whole weights that ZeRO-3 and FSDP gather, at the moments of a step. No torch. All numbers are bytes on one rank."""

from dataclasses import dataclass

from training.config.choices import Quantization, Strategy, Task
from training.config.chunked_loss import wants_chunks
from training.config.run_config import RunConfig
from training.config.sharding import MAX_LIVE_PARAMETERS, stage_3_sizes
from training.forecast.formula.optimizer_memory import layer_matrices
from training.forecast.formula.trainable import adapted, adapter_rank, ties_head, trains_tables
from training.model_info.shape import ModelShape


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
    """ZeRO-3 gathers weights ahead in the order of an earlier pass, and keeps up to a billion elements that a pass uses again.

    That is all that the backward pass needs, unless runs begin with passes that have no backward pass: in later passes the same
    modules then release their weights (training/simulation/strategies/zero3_fetching.py). While they do, weights of the first
    layers are already gathered again for the backward pass. A loss in chunks gathers the head.
    """
    adapters = float(compute * trained) if config.method.adapts else 0.0
    ahead = float(compute * stage_3_sizes(shape.hidden)["stage3_prefetch_bucket_size"])
    matrix, table = compute * max(layer_matrices(shape.stacks[0])), float(compute * shape.table)
    # The embeddings are used there.
    in_backward = not config.trainable_layers and (trains_tables(config) or config.recomputes)
    saved = _in_graph(config, shape, compute)
    head = float(compute * (shape.head or shape.table))
    if shape.encoder or (_begins_without_backward(config) and not _tested(config)):
        # Modules do not follow each other as in the pass before, so that no weights are gathered ahead or kept.
        few = layer + ahead + saved + adapters
        logits = saved + adapters + head * wants_chunks(config, shape.vocab)
        return Gathered(whole if shape.encoder and adapters else few, few, logits, logits, few, few)
    if not _begins_without_backward(config):
        kept = whole if in_backward or ties_head(config, shape) else whole - table
        if config.trainable_layers:
            kept = min(compute * trained + ahead + head * config.task.generates, whole)
        return Gathered(whole, kept, kept, kept, kept, min(table * in_backward + 2 * layer + ahead, whole))
    head *= wants_chunks(config, shape.vocab)
    tied = ties_head(config, shape)
    kept = adapters + ahead + saved
    if not config.trainable_layers:
        kept += layer * min(_released_early(config, shape), shape.layers)
        kept += table * (in_backward and not tied and config.method.adapts)
    last = kept + table * (in_backward and tied) + (layer if config.recomputes else matrix)
    first = adapters + saved + layer + ahead + table * in_backward
    return Gathered(whole, layer + kept, kept + head, kept + head, min(last, whole), min(first, last, whole))


def _released_early(config: RunConfig, shape: ModelShape) -> float:
    """The layers that are done in the forward pass when all weights are gathered: those are gathered again for the backward pass.

    The pass of each module gathers the next weights, until they have as many elements as the setting for it.
    """
    settings = stage_3_sizes(shape.hidden)
    most, stays = settings["stage3_prefetch_bucket_size"], settings["stage3_param_persistence_threshold"]
    adapts = adapted(config, shape)
    packs = 2 if config.quantized is Quantization.NF4 else 1
    gatherings = -3.0  # of embeddings and head, before layers
    modules = 1.0
    for stack in shape.stacks:
        calls, waiting, names = 0, 0, {"norm", "layer", "attention", "mlp", "activation"}
        modules = len(names) + 1
        for linear in stack.linears:
            weights = [linear.inputs * linear.outputs // packs]
            modules += 1
            if linear.name in adapts:
                rank = adapter_rank(config)
                weights += [rank * linear.inputs, rank * linear.outputs]
                modules += 7 if config.method.is_lora and config.use_dora else 4
            for weight in weights:
                if weight > stays:
                    waiting += weight
                if waiting >= most:
                    calls, waiting = calls + 1, 0
        gatherings += stack.layers * (calls + waiting / most)
    return gatherings / modules


def _tested(config: RunConfig) -> bool:
    """True if a run tests its batches before the first step, in passes without a backward pass."""
    return config.task in (Task.SFT, Task.PRETRAINING)


def _begins_without_backward(config: RunConfig) -> bool:
    """True if the first passes have no backward pass: the tests, or those of a reference that is the model without its adapter."""
    return _tested(config) or (config.task in (Task.DPO, Task.KTO) and config.method.adapts)


def _in_graph(config: RunConfig, shape: ModelShape, compute: int) -> float:
    """Bytes of gathered weights that the graph keeps until the backward pass although ZeRO-3 releases them: quantized ones, and the
    experts, of which linear layers save slices, unless they are recomputed."""
    quantized = 0.0 if config.quantized is Quantization.NONE else shape.linear_weights * packed_bytes(config)
    experts = 0 if config.recomputes else sum(stack.layers * stack.others for stack in shape.stacks if stack.experts)
    return quantized + compute * experts


def packed_bytes(config: RunConfig) -> float:
    """Bytes of a quantized weight, with its share of a scale per 64."""
    if config.quantized is Quantization.INT8:
        return 1.0
    return 0.5 + (0.0159 if config.double_quantization else 0.0625)
