"""How much memory a run takes, worked out from its settings and its model's config.json: milliseconds, no torch.

A step is looked at in four moments, and the largest of them is the peak: the end of the forward pass, the beginning of the backward
pass (all activations live, and the gradients of the logits), its end (all gradients live), and the optimizer's step. The parts
follow Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (2020), section 3; activations are
in training/activations.py. All numbers are bytes on one rank.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from training import trainable
from training.activations import Batch, Formats, layer_bytes
from training.cards import GIB, Card
from training.config import (
    Checkpointing,
    Method,
    Offload,
    OptimizerName,
    Precision,
    Quantization,
    RunConfig,
    Strategy,
    Task,
)
from training.model_shape import ModelShape

CONTEXT_BYTES = int(0.45 * GIB)
"""What CUDA, its kernels and cuBLAS take of a GPU before torch has anything: 0.3 to 0.6 GiB on cards since Volta."""
COMMUNICATION_BYTES = int(0.35 * GIB)
"""NCCL's buffers and channels on each GPU of a group."""
SLACK = 0.06
"""What the caching allocator holds beyond what is live: a share of all that comes and goes within a step."""
PROCESS_BYTES = int(3.0 * GIB)
"""Host memory of a training process besides what is offloaded to it: Python, torch, CUDA's libraries."""
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
"""An optimizer's state for each trained weight: fp32 moments, or 8-bit ones with a scale a block of 256 (bitsandbytes, torchao)."""
MOMENTS = {
    "forward": "the end of the forward pass",
    "backward": "the beginning of the backward pass",
    "gradients": "the end of the backward pass",
    "optimizer": "the optimizer's step",
}


@dataclass(frozen=True)
class Forecast:
    """What a run takes on each rank, in bytes. `parts` are those at the peak, by kind, and sum up to `peak_bytes`.

    `moments` holds each moment's sum. `allocated_bytes` is the peak without what torch does not count (context, slack).
    `host_bytes` are of all ranks of a machine together, `nvme_bytes` of its disk. Limits are None where they are not known.
    """

    parts: dict[str, int]
    moments: dict[str, int]
    host_bytes: int
    nvme_bytes: int
    limit_bytes: int | None
    host_limit_bytes: int | None
    trainable: int
    total: int
    batch: Batch
    reasons: list[str] = field(default_factory=list)

    @property
    def peak_bytes(self) -> int:
        return sum(self.parts.values())

    @property
    def allocated_bytes(self) -> int:
        return self.peak_bytes - self.parts.get("context", 0) - self.parts.get("slack", 0)

    @property
    def moment(self) -> str:
        return max(self.moments, key=lambda name: self.moments[name])

    @property
    def fits(self) -> bool:
        return not self.reasons


def full_batch(config: RunConfig) -> Batch:
    """The micro batch of rows that all have the maximum length: what a run may meet where its data is not known."""
    rows, length = _rows(config), config.max_length
    if config.task is Task.SEQ2SEQ:
        target = config.max_target_length or length
        return Batch(rows, length, rows * length, rows * target, target, rows * target)
    return Batch(rows, length, rows * length, rows * length)


def _rows(config: RunConfig) -> int:
    """Sequences in a forward pass: preferences come in pairs."""
    return config.micro_batch_size * (2 if config.task.pairs else 1)


def forecast(
    config: RunConfig,
    shape: ModelShape,
    *,
    card: Card | None = None,
    batch: Batch | None = None,
    host_limit_bytes: int | None = None,
    slack: float = SLACK,
) -> Forecast:
    """What a run takes on `card`, or on CPU where there is none, with its worst micro batch."""
    batch = batch or full_batch(config)
    sizes = Sizes.of(config, shape, card)
    live = _activations(config, shape, batch, sizes)
    moments = {name: _moment(name, config, shape, batch, sizes, live) for name in MOMENTS}
    worst = max(moments.values(), key=lambda parts: sum(parts.values()))
    parts = {name: int(amount) for name, amount in worst.items() if amount}
    if card:
        parts["context"] = CONTEXT_BYTES + (COMMUNICATION_BYTES if config.num_processes > 1 else 0)
        moving = sum(amount for name, amount in worst.items() if name not in ("weights", "optimizer"))
        parts["slack"] = int(slack * moving)
    host, nvme = _off_device(config, sizes)
    found = Forecast(
        parts, {name: int(sum(one.values())) for name, one in moments.items()}, host, nvme,
        _limit(config, card), host_limit_bytes, sizes.trained, sizes.total, batch,
    )  # fmt: skip
    found.reasons.extend(_reasons(found, card))
    return found


def _limit(config: RunConfig, card: Card | None) -> int | None:
    if card is None or config.memory_limit is None:
        return card.memory_bytes if card else None
    return int(card.memory_bytes * config.memory_limit if config.memory_limit < 1 else config.memory_limit * 2**20)


def _reasons(found: Forecast, card: Card | None) -> list[str]:
    """Why it does not fit, in sentences."""
    reasons = []
    if found.limit_bytes is not None and found.peak_bytes > found.limit_bytes:
        largest = max(found.parts, key=lambda name: found.parts[name])
        reasons.append(
            f"{_gib(found.peak_bytes)} on each GPU at {MOMENTS[found.moment]}, and {card.label if card else 'it'} has "
            f"{_gib(found.limit_bytes)}; the largest part is {_gib(found.parts[largest])} of {largest}."
        )
    if found.host_limit_bytes is not None and found.host_bytes > found.host_limit_bytes:
        reasons.append(
            f"{_gib(found.host_bytes)} of host memory, and the machine has {_gib(found.host_limit_bytes)}: "
            "the system would end the training processes."
        )
    return reasons


def _gib(amount: float) -> str:
    return f"{amount / GIB:.1f} GiB"


@dataclass(frozen=True)
class Sizes:
    """The parts that do not hang on the batch, in elements and bytes of an element on this rank.

    `total` and `trained` are elements of the whole model. `weights`, `gradients`, `optimizer`, `buffers` are bytes here.
    """

    total: int
    trained: int
    weights: int
    gradients: int
    gradient_format: int
    optimizer: int
    buffers: int
    step: int
    compute: int
    stream: int
    casts: bool
    adapts: frozenset[str]
    on_cuda: bool
    off_weights: int
    off_state: int

    @classmethod
    def of(cls, config: RunConfig, shape: ModelShape, card: Card | None) -> "Sizes":
        precision = resolved(config.precision, card)
        compute = 4 if precision is Precision.FP32 else 2
        stored = weight_bytes(config, precision)
        zero, ranks = config.strategy.zero_stage, config.num_processes // config.sequence_parallel_size
        ranks = config.num_processes if zero else ranks
        trained, added = trainable.count(config, shape)
        frozen = shape.parameters - (0 if added else trained)
        casts = compute == 2 and zero is None and config.strategy is not Strategy.FSDP
        sharded = config.strategy is Strategy.FSDP or zero == 3
        parts = ranks if sharded else 1
        held = _frozen_bytes(config, shape, frozen, stored)
        trained_format = (4 if config.method.adapts else stored) if zero is None else compute
        weights = held / parts + trained * trained_format / parts
        gradients = trained * trained_format / (ranks if sharded or zero == 2 else 1)
        state = trained * _state_bytes(config, stored)
        buffers, step = 0.0, 0.0
        if config.strategy is Strategy.DDP:
            buffers += trained * trained_format  # the reducer's buckets hold the gradients a second time
        if casts and not config.method.adapts and stored == 4:
            buffers += 2 * (shape.linear_weights + shape.head)  # autocast's 16-bit copies live until the backward pass
        if zero is not None:
            # The optimizer's fp32 copy of its part of the weights (with 16-bit training also what it steps on).
            state += 4 * trained
            bucket = shape.hidden**2 * compute
            buffers += min(bucket * (2 if zero in (1, 2) else 2), 2 * trained * compute) if zero else 0
            step = 4 * trained / ranks
        state /= ranks if zero or sharded else 1
        off_state = off_weights = 0.0
        if config.offload_optimizer is not Offload.NONE or (
            config.strategy is Strategy.FSDP and config.offload_param is not Offload.NONE
        ):
            off_state, state, step = state + gradients, 0.0, 0.0
            gradients = gradients if False else 0.0
        if config.offload_param is not Offload.NONE:
            off_weights, weights = weights, 0.0
        if config.optimizer.paged:
            off_state, state = off_state + state, 0.0
        if sharded and ranks >= 1:
            buffers += _gathered(config, shape, held, frozen, trained, compute)
        return cls(
            shape.parameters + added, trained, int(weights), int(gradients), trained_format, int(state), int(buffers), int(step), compute,
            4 if stored == 4 and zero is None and config.strategy is not Strategy.FSDP else compute, casts,
            trainable.adapted(config, shape), card is not None, int(off_weights), int(off_state),
        )  # fmt: skip


def resolved(precision: Precision, card: Card | None) -> Precision:
    """What `auto` means on a card, or on CPU."""
    if precision is not Precision.AUTO:
        return precision
    return Precision.FP32 if card is None else Precision.BF16 if card.bf16 else Precision.FP16


def weight_bytes(config: RunConfig, precision: Precision) -> int:
    """Bytes of a weight as it is kept, quantisation left out; training/model.py loads them so."""
    asked = config.weights_precision
    if asked is not Precision.AUTO and config.strategy.zero_stage is None:
        return 4 if asked is Precision.FP32 else 2
    plain = 4 if precision is Precision.FP32 else 2
    if config.optimizer is OptimizerName.ADAMW_ANYPRECISION or config.strategy.zero_stage is not None:
        return plain
    return 4 if config.method is Method.FULL else plain


def _frozen_bytes(config: RunConfig, shape: ModelShape, frozen: int, stored: int) -> float:
    """Bytes of the frozen weights, all ranks together."""
    if config.quantized is Quantization.NONE:
        return frozen * stored
    # Linear weights are packed, with a scale for each block of 64; PEFT keeps all others in fp32.
    scale = 0.0159 if config.double_quantization else 0.0625
    packed = 1.0 if config.quantized is Quantization.INT8 else 0.5 + scale
    return shape.linear_weights * packed + (frozen - shape.linear_weights) * 4


def _state_bytes(config: RunConfig, stored: int) -> float:
    """Bytes of the optimizer's state for each trained weight."""
    if config.optimizer is OptimizerName.ADAMW_ANYPRECISION:
        return 3.0 * stored  # two moments and the Kahan sum, in the weights' format
    if config.optimizer is OptimizerName.SGD and not config.momentum:
        return 0.0
    return STATE_BYTES[config.optimizer]


def _gathered(config: RunConfig, shape: ModelShape, held: float, frozen: int, trained: int, compute: int) -> float:
    """Bytes of whole weights that a sharded model has at hand: under FSDP two layers and what is outside of them, under
    ZeRO-3 up to a billion elements, since it keeps what is used again soon."""
    outside = shape.parameters - shape.in_layers
    per_weight = held / max(frozen, 1) if config.quantized is not Quantization.NONE else compute
    if config.strategy is Strategy.FSDP:
        return (2 * shape.largest_layer + outside) * per_weight
    return min(shape.parameters, 1_000_000_000) * per_weight


def _activations(config: RunConfig, shape: ModelShape, batch: Batch, sizes: Sizes) -> dict[str, float]:
    """`kept`: activations that live at the end of the forward pass; `layer`: what the busiest layer takes while its
    gradients are made."""
    how = Formats(
        stream=sizes.stream, compute=sizes.compute, casts=sizes.casts, trains=not config.method.adapts,
        adapts=sizes.adapts, rank=config.lora_r if config.method.is_lora else 8,
        adapter_dropout=config.lora_dropout > 0 and config.method.is_lora, on_cuda=sizes.on_cuda,
    )  # fmt: skip
    share = config.sequence_parallel_size
    whole = [(stack, layer_bytes(shape, stack, batch, how) / share) for stack in shape.stacks]
    kept = sum(stack.layers * amount for stack, amount in whole)
    largest = max(amount for _, amount in whole)
    inputs = sum(stack.layers * _tokens(shape, stack.cross, batch) for stack in shape.stacks) * shape.hidden
    inputs_bytes = inputs * sizes.stream / share
    again = largest  # the layer that is computed anew
    if config.gradient_checkpointing is Checkpointing.SELECTIVE:
        kept, inputs_bytes = kept / 2, inputs_bytes / 2
    elif config.recomputes:
        kept = 0.0
    else:
        inputs_bytes = again = 0.0
    if config.gradient_checkpointing is Checkpointing.OFFLOADED:
        inputs_bytes = 0.0
    outside = batch.tokens * shape.hidden * (sizes.stream + 4)  # embeddings, and what the last norm keeps
    widest = max(one.intermediate * max(one.routed, 1) for one in shape.stacks)
    moving = batch.tokens * (2 * widest + shape.hidden) * sizes.compute / share
    return {"kept": kept + inputs_bytes + outside, "layer": again + moving}


def _tokens(shape: ModelShape, cross: bool, batch: Batch) -> int:
    return batch.target_tokens if shape.encoder and cross else batch.tokens


def _logits(config: RunConfig, shape: ModelShape, batch: Batch, compute: int) -> tuple[float, float]:
    """Bytes of logits and loss at the end of the forward pass and at the beginning of the backward pass.

    Forward: logits, their fp32 copy where they have 16 bits, and log-probabilities. Backward: log-probabilities with the
    gradients of the loss and of the logits, all in fp32.
    """
    if not config.task.generates:
        return 0.0, 0.0
    elements = batch.loss_tokens * shape.vocab / config.sequence_parallel_size
    return elements * (8 if compute == 4 else 4 + 4 + compute), elements * 12


def _moment(
    name: str, config: RunConfig, shape: ModelShape, batch: Batch, sizes: Sizes, live: dict[str, float]
) -> dict[str, float]:
    """The parts that live at a moment."""
    base = {"weights": float(sizes.weights), "optimizer": float(sizes.optimizer), "buffers": float(sizes.buffers)}
    before = sizes.gradients if config.gradient_accumulation_steps > 1 else 0
    forward, backward = _logits(config, shape, batch, sizes.compute)
    # The gradient of a table that is also the head comes in two parts, which are added up into a third.
    table = 0 if config.method.adapts or shape.head else shape.table * sizes.gradient_format
    match name:
        case "forward":
            return base | {"activations": live["kept"], "logits": forward, "gradients": before}
        case "backward":
            if backward >= live["layer"]:
                return base | {"activations": live["kept"], "logits": backward, "gradients": before}
            return base | {"activations": live["kept"] + live["layer"], "gradients": before + table}
        case "gradients":
            # The first layer's own gradients come when its activations go; the embeddings' come at the very end.
            layer = sizes.gradients * shape.largest_layer / max(shape.parameters, 1) if not config.method.adapts else 0
            if live["layer"] > layer + 2 * table:
                return base | {"activations": live["layer"], "gradients": sizes.gradients - layer}
            return base | {"gradients": sizes.gradients + 2 * table}
    return base | {"gradients": sizes.gradients + float(sizes.step)}


def _off_device(config: RunConfig, sizes: Sizes) -> tuple[int, int]:
    """Bytes in host memory, of all processes on the machine, and on its NVMe disk."""
    ranks = config.num_processes
    parts = [(config.offload_optimizer, sizes.off_state), (config.offload_param, sizes.off_weights)]
    if config.strategy is Strategy.FSDP:
        parts = [(config.offload_param, sizes.off_state + sizes.off_weights)]
    elif config.optimizer.paged and config.offload_optimizer is Offload.NONE:
        parts.append((Offload.CPU, sizes.off_state))
    host = sum(amount for to, amount in parts if to is Offload.CPU)
    disk = sum(amount for to, amount in parts if to is Offload.NVME)
    return ranks * (host + PROCESS_BYTES), ranks * disk


def worst_first(found: Iterable[Forecast]) -> list[Forecast]:
    """Forecasts, the one that takes most first."""
    return sorted(found, key=lambda one: -one.peak_bytes)
