"""Gradients, gathered weights and buffers of ZeRO and FSDP at the moments of a step. No torch. All numbers are bytes on one rank.

Read from deepspeed/runtime/zero/stage_1_and_2.py and stage3.py and from torch/distributed/fsdp/_fully_shard, and compared with
what lived in memory in real runs.
"""

from dataclasses import dataclass

from training.config.choices import Quantization, Strategy
from training.config.run_config import RunConfig
from training.forecast.formula.sizes import Sizes, step_bytes
from training.forecast.formula.trainable import (
    layer_matrices,
    split_experts,
    ties_head,
    trained_matrices,
    trains_tables,
)
from training.model_info.shape import ModelShape

_NORM_BYTES = 8
"""DeepSpeed computes the norm of a gradient in float64, of a copy."""
_FILE_BYTES = 4
"""Bytes of a weight in files of fp32 weights, the largest that there are."""


@dataclass(frozen=True)
class Pass:
    """Gradients, with the buffers that reduce them, in a pass: when it begins, in the backward passes of the last layer and of the
    first one, and at its end, where `gathered` weights live besides. In the layer before the last, `next_layer` is what lives while
    the last layer's gradients are reduced; 0 if it is not more."""

    before: float
    last_layer: float
    first_layer: float
    end: float
    gathered: float = 0.0
    next_layer: float = 0.0


def is_sharded(config: RunConfig) -> bool:
    """True if the ranks divide optimizer state."""
    return config.strategy.zero_stage in (1, 2, 3) or config.strategy is Strategy.FSDP


def pass_bytes(config: RunConfig, shape: ModelShape, sizes: Sizes) -> Pass:
    """The gradients of a pass."""
    if config.strategy is Strategy.FSDP:
        return _fsdp(config, shape, sizes)
    return _zero_3(config, shape, sizes) if config.strategy.zero_stage == 3 else _zero(config, shape, sizes)


def optimizer_bytes(config: RunConfig, shape: ModelShape, sizes: Sizes) -> float:
    """Gradients and temporary tensors in the optimizer step.

    DeepSpeed computes the norm of each gradient in float64. ZeRO-1 and ZeRO-2 then flatten the gradients of the rank's part, while
    the buffer of the pass still holds them, and convert 16-bit ones to fp32, as does ZeRO-3.
    """
    if sizes.gradients == 0:
        return 0.0  # offloaded
    part = sizes.trained / config.num_processes
    largest = max(trained_matrices(config, shape), default=0)
    if config.strategy is Strategy.FSDP:
        return (
            sizes.gradients
            + step_bytes(config, shape, sizes.gradient_format, on_cuda=sizes.on_cuda) / config.num_processes
        )
    own = step_bytes(config, shape, 4, int(part), on_cuda=sizes.on_cuda)
    flat = sizes.compute * part if sizes.compute != 4 else 0.0
    if config.strategy.zero_stage == 3:
        return sizes.gradients + max(_NORM_BYTES * largest / config.num_processes, 4 * part + max(flat, own))
    return _owned(config, shape, sizes)[0] + max(_NORM_BYTES * min(largest, part), 4 * part + max(flat, own))


def start_bytes(config: RunConfig, shape: ModelShape, sizes: Sizes) -> float:
    """What lives before the first pass besides the rank's weights; on a GPU no more than in the passes, since DeepSpeed and FSDP
    divide weights in host memory or, where it has room, on the GPU."""
    if sizes.on_cuda:
        return sizes.start
    zero = config.strategy.zero_stage
    if zero == 3 and config.quantized is not Quantization.NONE:
        return sizes.start
    if zero == 3:  # rank 0 has the files in memory, and gathers each module to fill it
        largest = max(shape.table, shape.head, *(size for stack in shape.stacks for size in layer_matrices(stack)))
        copies = ties_head(config, shape) + 2 * (shape.encoder is not None)  # of the embeddings, which are not tied yet
        unshared = copies * (shape.table // config.num_processes)
        return sizes.start + _FILE_BYTES * shape.parameters + sizes.compute * (largest + unshared)
    if zero is None:  # FSDP divides whole weights
        return sizes.start + sizes.weights * config.num_processes
    part = 4.0 * sizes.trained / config.num_processes
    flat = float(sizes.compute * sizes.trained)  # a copy of the weights; later fp32 weights and gradients
    return sizes.start + max(flat, 2 * part)


def saving_bytes(config: RunConfig, shape: ModelShape, sizes: Sizes) -> float:
    """What rank 0 takes to save a model. Weights that are gathered go to the host one after another, where DeepSpeed's fused
    experts are split; on CPU that is the same memory. FSDP gathers a tied weight twice, and holds one twice while it is gathered.
    """
    zero = config.strategy.zero_stage
    largest = max(shape.table, shape.head, *(size for stack in shape.stacks for size in layer_matrices(stack)))
    element = sizes.compute if zero or config.method.adapts else sizes.gradient_format
    padded = (
        largest // config.num_processes if shape.vocab % config.num_processes else 0
    )  # of rows that ranks divide unevenly
    gathered = 0 if zero in (1, 2) else largest if zero == 3 else 2 * largest + padded
    if config.method.adapts or sizes.on_cuda:
        copies = 0 if sizes.on_cuda else sizes.gradient_format * sizes.trained  # in host memory
        return float(element * gathered + copies)
    tied = shape.table if ties_head(config, shape) else 0
    if zero is None:  # frozen weights keep their format
        whole = sizes.weights * config.num_processes
        table = sizes.compute if config.trainable_layers else element
        return whole + max(table * (tied + largest + padded), table * tied + element * split_experts(shape))
    return float(element * ((shape.parameters if zero == 3 else sizes.trained) + split_experts(shape)))


def _owned(config: RunConfig, shape: ModelShape, sizes: Sizes) -> tuple[float, float]:
    """What the fullest rank holds of the gradients: those of all weights that its part touches, whole, in a buffer; and with them
    those of other ranks that are too large for the bucket, which ZeRO-1 keeps until the pass ends."""
    ranks, weights = config.num_processes, trained_matrices(config, shape)
    part, bucket = sum(weights) / ranks, shape.hidden**2
    if not weights:
        return (sizes.trained * sizes.compute / ranks,) * 2
    most_owned = most_kept = 0
    for rank in range(ranks):
        owned = kept = end = 0
        for size in weights:
            first, end = end, end + size
            touches = end > rank * part and first < (rank + 1) * part
            owned += size if touches else 0
            kept += size if touches or size > bucket else 0
        most_owned, most_kept = max(most_owned, owned), max(most_kept, kept)
    return float(most_owned * sizes.compute), float(most_kept * sizes.compute)


def _tables(config: RunConfig, shape: ModelShape, sizes: Sizes) -> tuple[float, float]:
    """The gradient of the head that waits for that of the embedding it is tied to, and all gradients of the embedding at the end.

    The sum of both is a third tensor on CPU. On a GPU autograd adds in place, which it does not while a mode counts storages
    (can_accumulate_inplace, torch/csrc/autograd/input_buffer.cpp).
    """
    if not trains_tables(config):
        return 0.0, 0.0
    table = float(sizes.compute * shape.table)
    return (table, table * (2 if sizes.on_cuda else 3)) if ties_head(config, shape) else (0.0, table)


def _on_the_way(config: RunConfig, shape: ModelShape, sizes: Sizes) -> float:
    """A layer's gradients on the way to their ranks: one that is computed and, if the one before is too large for the bucket, that
    one, with the copy that is reduced."""
    if config.method.adapts:
        return 0.0
    most = 0
    for stack in shape.stacks:
        before = 0
        for size in reversed(layer_matrices(stack)):
            most = max(most, size + 2 * (before if before > shape.hidden**2 else 0))
            before = size
    return float(sizes.compute * most)


def _zero(config: RunConfig, shape: ModelShape, sizes: Sizes) -> Pass:
    """ZeRO-1 and ZeRO-2, which make their two buckets in the backward pass.

    With gradient accumulation, ZeRO-1 keeps all gradients until the last micro batch; ZeRO-2 keeps those of the rank's part, and
    adds to them those of the next micro batch, which have a buffer of their own.
    """
    stage, accumulates = config.strategy.zero_stage, config.gradient_accumulation_steps > 1
    owned, kept = _owned(config, shape, sizes) if sizes.gradients else (0.0, 0.0)
    buckets = 2.0 * sizes.compute * shape.hidden**2
    waits, tables = _tables(config, shape, sizes)
    layer = waits + _on_the_way(config, shape, sizes) + buckets
    table = float(sizes.compute * shape.table) if tables else 0.0
    reduced = max(tables, 2 * table) + buckets  # an embedding's gradient, and the copy that is reduced
    if stage == 2:
        before = owned if accumulates else 0.0
        return Pass(before, before + owned + layer, before + owned + layer, before + owned + reduced)
    before = float(sizes.trained * sizes.compute) if accumulates else 0.0
    if accumulates:
        return Pass(before, before + owned + layer, before + layer, before + reduced)
    return Pass(0.0, owned + layer, max(owned, kept - table) + layer, max(owned, kept - table) + reduced)


def _zero_3(config: RunConfig, shape: ModelShape, sizes: Sizes) -> Pass:
    """ZeRO-3, whose buffer for the gradients of the rank's part always lives."""
    waits, tables = _tables(config, shape, sizes)
    layer = sizes.gradients + waits + _on_the_way(config, shape, sizes)
    table = float(sizes.compute * shape.table) if tables else 0.0
    reduced = table + (0.0 if sizes.on_cuda else table)  # gloo copies what it reduces
    return Pass(
        sizes.gradients, layer, layer, sizes.gradients + max(tables, reduced), float(sizes.compute * shape.table)
    )


def _fsdp(config: RunConfig, shape: ModelShape, sizes: Sizes) -> Pass:
    """FSDP, which reduces gradients in the format of the weights, layer by layer, in each micro step; a layer's buffer lives until
    that of the next. With gradient accumulation what is reduced is added to the rank's part.
    """
    copies = 1 if sizes.on_cuda else 2  # gloo copies what it reduces
    largest = 0 if config.method.adapts else shape.largest_layer
    waits, tables = _tables(config, shape, sizes)
    reduced = float(sizes.gradient_format)
    table = reduced * shape.table if tables else 0.0
    sent = table * (copies + 1 / config.num_processes)  # an untied head's gradient, when one layer is gathered
    head = 0.0 if waits else sent - sizes.gathered.in_layers + sizes.compute * largest
    before = sizes.gradients if config.gradient_accumulation_steps > 1 else 0.0
    layer = waits + reduced * largest  # the gradients that wait, and the buffer of the layer before
    last = before + max(waits + sizes.compute * largest, head)
    # Of the last layer's gradients and the head's a shard remains; accumulated ones are in `before`.
    shard = 0.0 if before else (reduced * largest + (0.0 if waits else table)) / config.num_processes
    after = before + waits + (sizes.compute + reduced) * largest + shard
    rest = sizes.compute * (shape.parameters - shape.in_layers - min(shape.table, shape.head))
    end = max(rest + tables + reduced * largest, table * copies + sizes.compute * shape.table)
    return Pass(before, last, sizes.gradients + layer, sizes.gradients + (end if tables else rest), next_layer=after)
