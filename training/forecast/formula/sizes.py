"""The memory of a run that does not depend on its batch: weights, gradients, optimizer and buffers on one rank. No torch.

Sharding follows Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (2020), section 3;
the libraries' other buffers were counted in real runs (benchmarks/forecast/command.py).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from training.config.choices import Method, Offload, Precision, Quantization, Strategy
from training.config.optimizer_name import LEAST_QUANTIZED, OptimizerName, QuantizedState
from training.config.run_config import RunConfig
from training.forecast.formula import trainable
from training.forecast.formula.gathered import Gathered, gathered_bytes, packed_bytes
from training.forecast.gpus import Card
from training.model_info.shape import ModelShape

_BROADCAST_BYTES = 250 * 2**20
"""Size of DDP's broadcasts of rank 0's weights at the start."""
_IMPORTANCE_BYTES = 12
"""AdaLoRA keeps three fp32 values of each trained weight (peft/tuners/adalora/layer.py: RankAllocator)."""
FP32 = 4


@dataclass(frozen=True)
class Sizes:
    """`total` and `trained` are elements of the whole model. `weights`, `gradients`, `optimizer` and `buffers` are bytes on this
    rank; `start` and `step` are temporary bytes before the first pass and in the optimizer step; `off_weights` and `off_state` are
    bytes offloaded to host or disk; `loading` is what all takes while the weights are loaded; `master` is the part of `optimizer`
    that exists before the first step.

    `flash` is True if attention has FlashAttention kernels. `compute` and `stream` are bytes per element in matrix products and
    between layers, `gradient_format` per gradient; `casts` is True if autocast copies the inputs of each product; `adapts` names
    the modules with an adapter.
    """

    total: int
    trained: int
    weights: float
    gradients: float
    gradient_format: int
    optimizer: float
    buffers: float
    gathered: Gathered
    start: float
    step: float
    compute: int
    stream: int
    casts: bool
    adapts: frozenset[str]
    on_cuda: bool
    off_weights: float = 0.0
    off_state: float = 0.0
    loading: float = 0.0
    master: float = 0.0
    flash: bool = True


def sizes_of(config: RunConfig, shape: ModelShape, card: Card | None) -> Sizes:
    """The memory on each rank that does not depend on the batch."""
    precision = resolved(config.precision, card)
    stored = loaded_bytes(config, precision)
    if config.strategy is Strategy.FSDP and precision is not Precision.FP32 and config.method is Method.FULL:
        stored = 4  # accelerate converts weights that train to fp32 if it computes in 16 bits
    # Without autocast, 16-bit weights compute in their own format.
    compute = stored if precision is Precision.FP32 else 2
    zero, fsdp = config.strategy.zero_stage, config.strategy is Strategy.FSDP
    trained, added = trainable.count(config, shape)
    frozen = shape.parameters - (0 if added else trained)
    plain = zero is None and not fsdp
    casts = plain and precision is not Precision.FP32
    format_ = compute if zero is not None else 4 if config.method.adapts else stored
    # accelerate converts only what trains.
    kept = loaded_bytes(config, precision) if config.trainable_layers else stored
    held, ranks = _frozen_bytes(config, shape, frozen, kept), config.num_processes
    sharded = fsdp or zero == 3
    weights = (held + trained * format_) / (ranks if sharded else 1)
    weights += (4 if plain else compute) * trainable.fixed_weights(config, shape)
    if config.loads_reference:
        weights += shape.parameters * stored / (ranks if sharded else 1)  # the reference model
    for other, quantization in _others(config, shape):
        weights += _whole_bytes(config, other, quantization, compute)
    gradients = trained * format_ / (ranks if sharded or zero == 2 else 1)
    # DeepSpeed's optimizer updates an fp32 copy of its shard of the weights.
    state = state_bytes(config, shape, trained, 4 if config.method.adapts else stored)
    state = (state + (4 * trained if zero is not None else 0)) / (ranks if zero or sharded else 1)
    if config.method is Method.ADALORA:
        state += _IMPORTANCE_BYTES * trained
    step = 0.0 if zero is not None or fsdp else step_bytes(config, shape, stored, on_cuda=card is not None)
    workspaces = card.workspace_bytes if card else 0
    # The buckets that always live: DDP's have the size of all gradients, ZeRO-3's that of hidden size squared.
    ddp = config.strategy is Strategy.DDP
    buffers = workspaces + (trained * format_ if ddp else compute * shape.hidden**2 if zero == 3 else 0.0)
    start = workspaces + (min(weights, _BROADCAST_BYTES) if ddp else 0.0)
    loading = _loading(shape, stored) if card is None and config.quantized is not Quantization.NONE else 0.0
    gathered = gathered_bytes(config, shape, held, trained, compute) if sharded else Gathered()
    off_state = off_weights = 0.0
    if config.offload_optimizer is not Offload.NONE or (fsdp and config.offload_param is not Offload.NONE):
        off_state, state, gradients, step = state + gradients, 0.0, 0.0, 0.0
    if config.offload_param is not Offload.NONE:
        off_weights, weights = weights, 0.0
    if config.optimizer.traits.paged:
        off_state, state = off_state + state, 0.0
    return Sizes(
        total=shape.parameters + added, trained=trained, weights=weights, gradients=gradients, gradient_format=format_,
        optimizer=state, buffers=buffers, gathered=gathered, start=start, step=step, compute=compute,
        stream=4 if stored == 4 and plain else compute,
        casts=casts, adapts=trainable.adapted(config, shape), on_cuda=card is not None, off_weights=off_weights,
        off_state=off_state, loading=loading, master=min(state, 4.0 * trained / ranks) if zero is not None else 0.0,
        flash=card is None or (card.flash and compute != 4),
    )  # fmt: skip


def resolved(precision: Precision, card: Card | None) -> Precision:
    """The precision that `auto` selects on a card, or on CPU."""
    if precision is not Precision.AUTO:
        return precision
    return Precision.FP32 if card is None else Precision.BF16 if card.bf16 else Precision.FP16


def loaded_bytes(config: RunConfig, precision: Precision) -> int:
    """Bytes of a weight, without quantization, as training/models/loading.py loads it."""
    plain = 4 if precision is Precision.FP32 else 2
    if config.strategy.zero_stage is not None:
        return plain
    if config.weights_precision is not Precision.AUTO:
        return 4 if config.weights_precision is Precision.FP32 else 2
    if config.optimizer is OptimizerName.ADAMW_ANYPRECISION:
        return plain
    return 4 if config.method is Method.FULL else plain


def _loading(shape: ModelShape, stored: int) -> float:
    """Bytes of the embeddings while a quantized model is loaded on CPU, from files of fp32 weights: they come before the layers.
    Other models are read from the files' pages, which are no tensors."""
    return shape.table * (4 + (stored if stored != 4 else 0)) + shape.head * stored


def _frozen_bytes(config: RunConfig, shape: ModelShape, frozen: int, stored: int) -> float:
    if config.quantized is Quantization.NONE:
        return frozen * stored
    # Only linear weights are packed; other weights and fused experts are not, and not T5's `wo` (_keep_in_fp32_modules).
    linears = [(stack.layers, linear) for stack in shape.stacks for linear in stack.linears]
    plain = sum(count * one.inputs * one.outputs for count, one in linears if one.name.endswith("DenseReluDense.wo"))
    packed = shape.linear_weights - plain
    return packed * packed_bytes(config) + (frozen - packed) * stored


def _others(config: RunConfig, shape: ModelShape) -> Iterator[tuple[ModelShape, Quantization]]:
    """The models besides the trained one, with the formats of their weights."""
    if shape.teacher:
        yield shape.teacher, config.teacher_quantization
    yield from ((model, Quantization(name)) for model, name in shape.reward_models)


def _whole_bytes(config: RunConfig, shape: ModelShape, quantization: Quantization, stored: int) -> float:
    """Bytes of a frozen model besides the trained one, which each rank holds whole: a teacher, or a reward model."""
    frozen = config.model_copy(update={"method": Method.LORA, "quantization": quantization})
    return _frozen_bytes(frozen, shape, shape.parameters, stored)


def freed_in_backward(config: RunConfig, shape: ModelShape, sizes: Sizes) -> Sizes:
    """The sizes with only the largest gradient if the optimizer steps in the backward pass."""
    if not config.steps_in_backward:
        return sizes
    linears = [linear.parameters for stack in shape.stacks for linear in stack.linears]
    largest = max(shape.table, shape.head, *linears) * sizes.gradient_format
    return replace(sizes, gradients=float(min(largest, sizes.gradients)))


def state_bytes(config: RunConfig, shape: ModelShape, trained: int, format_: int) -> float:
    """The state of `trained` weights of `format_` bytes each, on all ranks."""
    zero = config.strategy.zero_stage is not None
    if config.optimizer is OptimizerName.ADAMW_ANYPRECISION:
        # Two moments in the format of the weight and, of 16-bit weights, the Kahan compensation; ZeRO updates fp32 weights.
        return trained * (8.0 if zero or format_ == FP32 else 3.0 * format_)
    if config.optimizer is OptimizerName.SGD and not config.momentum:
        return 0.0
    if config.optimizer is OptimizerName.ADAFACTOR and (zero or config.method.adapts):
        return trained * (FP32 if zero or not config.method.is_lora else FP32 / config.lora_r)
    if config.optimizer is OptimizerName.MUON and trainable.trains_tables(config):
        # AdamW's second moment of what is not a matrix of a layer.
        experts = sum(stack.layers * stack.others for stack in shape.stacks if stack.experts)
        outside = shape.parameters - shape.in_layers + experts
        return trained * config.optimizer.traits.state_bytes + FP32 * outside
    state = config.optimizer.traits.state
    if config.optimizer.traits.fp32_state_of_embeddings and isinstance(state, QuantizedState) and not zero:
        narrow, wide = state.bytes_per_weight, state.moments * FP32
        return trained * narrow + _in_fp32(config, shape, trained) * (wide - narrow)
    halved = config.optimizer.traits.state_in_weights_format and format_ == 2 and not zero
    return trained * config.optimizer.traits.state_bytes / (2 if halved else 1)


def _in_fp32(config: RunConfig, shape: ModelShape, trained: int) -> float:
    """The weights of which bitsandbytes keeps the state in fp32: transformers asks for it for embeddings."""
    if config.method.adapts:
        return trained * trainable.share_in_small_tensors(config, shape, LEAST_QUANTIZED)
    return float(shape.table + shape.positions) if trainable.trains_tables(config) else 0.0


def step_bytes(config: RunConfig, shape: ModelShape, format_: int, part: int = 0, *, on_cuda: bool) -> float:
    """Temporary tensors of a step that updates weights of `format_` bytes one by one, or a flat vector of `part` weights.

    Adafactor squares a gradient in fp32 and adds a constant, which makes two tensors, and updates fp32 copies of 16-bit weights
    with fp32 copies of their gradients (transformers/optimization.py). Muon makes an fp32 update, and the 16-bit matrices of its
    iteration (torch/optim/_muon.py). optimi makes the root of the second moment, on a GPU within its kernel.
    """
    if config.optimizer is OptimizerName.MUON and not config.method.adapts:
        matrices = [linear for stack in shape.stacks for linear in stack.linears]
        sizes = (8.0 * one.inputs * one.outputs + 4.0 * min(one.inputs, one.outputs) ** 2 for one in matrices)
        return max(sizes, default=0.0)
    largest = part or max(trainable.trained_matrices(config, shape), default=0)
    if config.optimizer is OptimizerName.ADAFACTOR:
        return float(FP32 * largest * (2 if part or format_ == FP32 else 4))
    if config.optimizer is OptimizerName.ADAMW_ANYPRECISION and not on_cuda:
        return float(format_ * largest)
    return 0.0
