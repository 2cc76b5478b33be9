"""The memory of a run that does not depend on its batch: weights, gradients, optimizer and buffers on one rank. No torch.

Sharding follows Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (2020), section 3;
the libraries' other buffers were counted in real runs (benchmarks/forecast/command.py).
"""

from dataclasses import dataclass

from training.config.choices import Method, Offload, OptimizerName, Precision, Quantization, Strategy, Task
from training.config.run_config import RunConfig
from training.config.sharding import MAX_LIVE_PARAMETERS
from training.forecast import trainable
from training.forecast.card_share import workspace_bytes
from training.forecast.gpus import Card
from training.model_info.shape import ModelShape

STATE_BYTES = {
    OptimizerName.ADAMW: 8.0,
    OptimizerName.PAGED_ADAMW_32BIT: 8.0,
    OptimizerName.ADAMW_8BIT: 2.03,
    OptimizerName.PAGED_ADAMW_8BIT: 2.03,
    OptimizerName.ADAMW_TORCHAO_8BIT: 2.03,
    OptimizerName.ADAMW_TORCHAO_4BIT: 1.06,
    OptimizerName.ADAFACTOR: 0.02,
    OptimizerName.LION: 4.0,
    OptimizerName.LION_8BIT: 1.02,
    OptimizerName.MUON: 4.0,
    OptimizerName.SGD: 4.0,
}
"""Bytes of optimizer state per trained weight: fp32 moments, or 8-bit ones with a scale per 256 (bitsandbytes, torchao)."""
_BROADCAST_BYTES = 250 * 2**20
"""Size of DDP's broadcasts of rank 0's weights at the start."""


@dataclass(frozen=True)
class Sizes:
    """`total` and `trained` are elements of the whole model. `weights`, `gradients`, `optimizer` and `buffers` are bytes on this
    rank, `gathered` those of whole weights during the passes of a sharded model; `start` and `step` are temporary bytes in the
    first pass and in the optimizer step; `off_weights` and `off_state` are bytes offloaded to host or disk.

    `compute` and `stream` are bytes per element in matrix products and between layers, `gradient_format` per gradient; `casts`
    is True if autocast copies the inputs of each product; `adapts` names the modules with an adapter.
    """

    total: int
    trained: int
    weights: float
    gradients: float
    gradient_format: int
    optimizer: float
    buffers: float
    gathered: float
    start: float
    step: float
    compute: int
    stream: int
    casts: bool
    adapts: frozenset[str]
    on_cuda: bool
    off_weights: float = 0.0
    off_state: float = 0.0


def sizes_of(config: RunConfig, shape: ModelShape, card: Card | None) -> Sizes:
    """The memory on each rank that does not depend on the batch."""
    precision = resolved(config.precision, card)
    stored = weight_bytes(config, precision)
    compute = (
        stored if precision is Precision.FP32 else 2
    )  # without autocast, 16-bit weights compute in their own format
    zero, fsdp = config.strategy.zero_stage, config.strategy is Strategy.FSDP
    trained, added = trainable.count(config, shape)
    frozen = shape.parameters - (0 if added else trained)
    plain = zero is None and not fsdp
    casts = compute == 2 and plain
    format_ = compute if zero is not None else 4 if config.method.adapts else stored
    held, ranks = _frozen_bytes(config, shape, frozen, stored), config.num_processes
    sharded = fsdp or zero == 3
    weights = (held + trained * format_) / (ranks if sharded else 1)
    if config.task in (Task.DPO, Task.KTO) and not config.method.adapts:
        weights += shape.parameters * stored / (ranks if sharded else 1)  # the reference model
    gradients = trained * format_ / (ranks if sharded or zero == 2 else 1)
    # DeepSpeed's optimizer updates an fp32 copy of its shard of the weights.
    state = (
        trained * (_state_bytes(config, stored) + (4 if zero is not None else 0)) / (ranks if zero or sharded else 1)
    )
    step = 4 * trained / ranks if zero is not None else _own_step(config, shape, stored)
    buffers = _buffers(config, shape, trained, format_, compute) + workspace_bytes(card)
    start, gathered = min(weights, _BROADCAST_BYTES) if config.strategy is Strategy.DDP else 0.0, 0.0
    if sharded:
        whole, layers = _gathered(config, shape, held, frozen, compute)
        gathered = layers
        start = max(0.0, whole - layers)
    off_state = off_weights = 0.0
    if config.offload_optimizer is not Offload.NONE or (fsdp and config.offload_param is not Offload.NONE):
        off_state, state, gradients, step = state + gradients, 0.0, 0.0, 0.0
    if config.offload_param is not Offload.NONE:
        off_weights, weights = weights, 0.0
    if config.optimizer.paged:
        off_state, state = off_state + state, 0.0
    return Sizes(
        total=shape.parameters + added, trained=trained, weights=weights, gradients=gradients, gradient_format=format_,
        optimizer=state, buffers=buffers, gathered=gathered, start=start, step=step, compute=compute,
        stream=4 if stored == 4 and plain else compute,
        casts=casts, adapts=trainable.adapted(config, shape), on_cuda=card is not None, off_weights=off_weights,
        off_state=off_state,
    )  # fmt: skip


def resolved(precision: Precision, card: Card | None) -> Precision:
    """The precision that `auto` selects on a card, or on CPU."""
    if precision is not Precision.AUTO:
        return precision
    return Precision.FP32 if card is None else Precision.BF16 if card.bf16 else Precision.FP16


def weight_bytes(config: RunConfig, precision: Precision) -> int:
    """Bytes of a stored weight, without quantization, as training/models/loading.py loads it."""
    plain = 4 if precision is Precision.FP32 else 2
    if config.strategy.zero_stage is not None:
        return plain
    if config.weights_precision is not Precision.AUTO:
        return 4 if config.weights_precision is Precision.FP32 else 2
    if config.optimizer is OptimizerName.ADAMW_ANYPRECISION:
        return plain
    return 4 if config.method is Method.FULL else plain


def _own_step(config: RunConfig, shape: ModelShape, stored: int) -> float:
    """Temporary bytes of an optimizer's step. Adafactor makes fp32 tensors of the size of a weight (transformers/optimization.py):
    the squared gradient, its factored estimate and the update, and of 16-bit weights a copy that it updates."""
    if config.optimizer is not OptimizerName.ADAFACTOR or config.method.adapts or config.strategy is Strategy.FSDP:
        return 0.0
    largest = max((linear.inputs * linear.outputs for stack in shape.stacks for linear in stack.linears), default=0)
    if not config.trainable_layers:
        largest = max(largest, shape.table, shape.head)
    return 4.0 * largest * (3 if stored == 4 else 4)


def _frozen_bytes(config: RunConfig, shape: ModelShape, frozen: int, stored: int) -> float:
    """Bytes of the frozen weights over all ranks."""
    if config.quantized is Quantization.NONE:
        return frozen * stored
    # Only linear weights are packed, with a scale per 64; other weights and fused experts are not.
    scale = 0.0159 if config.double_quantization else 0.0625
    packed = 1.0 if config.quantized is Quantization.INT8 else 0.5 + scale
    return shape.linear_weights * packed + (frozen - shape.linear_weights) * stored


def _state_bytes(config: RunConfig, stored: int) -> float:
    """Bytes of optimizer state per trained weight."""
    if config.optimizer is OptimizerName.ADAMW_ANYPRECISION:
        return 3.0 * stored  # two moments and the Kahan compensation, in the weights' format
    if config.optimizer is OptimizerName.SGD and not config.momentum:
        return 0.0
    # torch's own optimizers keep their state in the format of the weight.
    own = config.optimizer in (OptimizerName.ADAMW, OptimizerName.SGD) and not config.method.adapts
    in_16_bits = own and stored == 2 and config.strategy.zero_stage is None
    return STATE_BYTES[config.optimizer] / (2 if in_16_bits else 1)


def _buffers(config: RunConfig, shape: ModelShape, trained: int, format_: int, compute: int) -> float:
    """Bytes of the gradient buckets: DDP's have the size of all gradients, ZeRO's two that of hidden size squared."""
    if config.strategy is Strategy.DDP:
        return trained * format_
    if config.strategy.zero_stage:
        return 2 * compute * min(shape.hidden**2, trained)
    return 0.0


def _gathered(config: RunConfig, shape: ModelShape, held: float, frozen: int, compute: int) -> tuple[float, float]:
    """Bytes of gathered weights of a sharded model: when the first pass starts, and during training.

    FSDP gathers two layers and all weights outside of layers. ZeRO-3 gathers up to a billion elements and, in full fine-tuning,
    keeps them for reuse; with an adapter it frees them, except for two layers and untied head and embeddings.
    """
    per_weight = held / max(frozen, 1) if config.quantized is not Quantization.NONE else compute
    two = 2 * shape.largest_layer * per_weight
    if config.strategy is Strategy.FSDP:
        layers = two + (shape.parameters - shape.in_layers - min(shape.table, shape.head)) * per_weight
        return layers, layers
    whole = min(shape.parameters, MAX_LIVE_PARAMETERS) * per_weight
    return (whole, two + 2 * shape.head * per_weight) if config.method.adapts else (whole, whole)
