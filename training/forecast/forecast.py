"""Estimates the memory of a run from its settings and its model's config.json, in milliseconds. No torch.

The peak is the largest of five moments: the start, the end of the forward pass, the beginning of the backward pass (all
activations and the gradients of the logits), its end (all gradients), and the optimizer step. sizes.py computes what does not
depend on the batch, activations.py the activations. All numbers are bytes on one rank.
"""

from dataclasses import dataclass, field

from training.config.choices import Checkpointing, Offload, Strategy, Task
from training.config.run_config import RunConfig
from training.forecast.activations import Batch, Formats, layer_bytes
from training.forecast.gpus import GIB, Card
from training.forecast.sizes import Sizes, sizes_of
from training.model_info.shape import ModelShape

CONTEXT_BYTES = int(0.45 * GIB)
"""GPU memory of the CUDA context, kernels and cuBLAS: 0.3 to 0.6 GiB on GPUs since Volta."""
COMMUNICATION_BYTES = int(0.35 * GIB)
"""NCCL's buffers and channels on each GPU of a group."""
SLACK = 0.06
"""Memory that the caching allocator reserves but does not use: a share of everything but weights and optimizer state."""
PROCESS_BYTES = int(3.0 * GIB)
"""Host memory of a training process without offloaded state: Python, torch, CUDA's libraries."""
MOMENTS = {
    "start": "the start, when rank 0 broadcasts the weights",
    "forward": "the end of the forward pass",
    "backward": "the beginning of the backward pass",
    "gradients": "the end of the backward pass",
    "optimizer": "the optimizer step",
}


@dataclass(frozen=True)
class Forecast:
    """The estimated memory of a run on each rank, in bytes. `parts` is the peak by kind; it sums up to `peak_bytes`.

    `moments` has the sum of each moment. `allocated_bytes` is the peak without context and slack, as torch counts it.
    `host_bytes` is the host memory of all ranks of a machine, `nvme_bytes` their disk space. Limits are None if unknown.
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
    """A micro batch of rows of maximum length: the worst case for unknown data."""
    rows, length = _rows(config), config.max_length
    if config.task is Task.SEQ2SEQ:
        target = config.max_target_length or length
        return Batch(rows, length, rows * length, rows * target, target, rows * target)
    return Batch(rows, length, rows * length, rows * length)


def _rows(config: RunConfig) -> int:
    """Sequences in a forward pass: preference pairs count twice."""
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
    """The forecast for a run on `card`, or on CPU if it is None. `batch` is its worst micro batch."""
    batch = batch or full_batch(config)
    sizes = sizes_of(config, shape, card)
    live = _activations(config, shape, batch, sizes)
    moments = {name: _moment(name, config, shape, batch, sizes, live) for name in MOMENTS}
    worst = max(moments.values(), key=lambda parts: sum(parts.values()))
    parts = {name: int(amount) for name, amount in worst.items() if amount}
    if card:
        parts["context"] = CONTEXT_BYTES + (COMMUNICATION_BYTES if config.num_processes > 1 else 0)
        moving = sum(amount for name, amount in worst.items() if name not in ("weights", "optimizer"))
        parts["slack"] = int(slack * moving)
    host, nvme = _off_device(config, sizes)
    if card is None:  # the device is the host
        host += config.num_processes * sum(parts.values())
    expected = Forecast(
        parts, {name: int(sum(sizes_.values())) for name, sizes_ in moments.items()}, host, nvme,
        _limit(config, card), host_limit_bytes, sizes.trained, sizes.total, batch,
    )  # fmt: skip
    expected.reasons.extend(_reasons(expected, card))
    return expected


def _limit(config: RunConfig, card: Card | None) -> int | None:
    if card is None or config.memory_limit is None:
        return card.memory_bytes if card else None
    return int(card.memory_bytes * config.memory_limit if config.memory_limit < 1 else config.memory_limit * 2**20)


def _reasons(expected: Forecast, card: Card | None) -> list[str]:
    """The reasons why it does not fit, as sentences."""
    reasons = []
    if expected.limit_bytes is not None and expected.peak_bytes > expected.limit_bytes:
        largest = max(expected.parts, key=lambda name: expected.parts[name])
        reasons.append(
            f"Needs {_gib(expected.peak_bytes)} per GPU at {MOMENTS[expected.moment]}; {card.label if card else 'the GPU'} has "
            f"{_gib(expected.limit_bytes)}. The largest part is {largest} with {_gib(expected.parts[largest])}."
        )
    if expected.host_limit_bytes is not None and expected.host_bytes > expected.host_limit_bytes:
        reasons.append(
            f"Needs {_gib(expected.host_bytes)} of host memory; the machine has {_gib(expected.host_limit_bytes)}. "
            "The system would kill the training processes."
        )
    return reasons


def _gib(amount: float) -> str:
    return f"{amount / GIB:.1f} GiB"


def _activations(config: RunConfig, shape: ModelShape, batch: Batch, sizes: Sizes) -> dict[str, float]:
    """`kept`: activations at the end of the forward pass; `layer`: what the largest layer takes during its backward pass."""
    formats = Formats(
        stream=sizes.stream, compute=sizes.compute, casts=sizes.casts, trains=not config.method.adapts,
        adapts=sizes.adapts, rank=config.lora_r if config.method.is_lora else 8,
        adapter_dropout=config.lora_dropout > 0 and config.method.is_lora, on_cuda=sizes.on_cuda,
    )  # fmt: skip
    share = config.sequence_parallel_size
    whole = [(stack, layer_bytes(shape, stack, batch, formats) / share) for stack in shape.stacks]
    kept = sum(stack.layers * amount for stack, amount in whole)
    largest = max(amount for _, amount in whole)
    inputs = sum(stack.layers * _tokens(shape, stack.cross, batch) for stack in shape.stacks) * shape.hidden
    inputs_bytes = inputs * sizes.stream / share
    recomputed = largest  # the layer that is recomputed
    if config.gradient_checkpointing is Checkpointing.SELECTIVE:
        kept, inputs_bytes = kept / 2, inputs_bytes / 2
    elif config.recomputes:
        kept = 0.0
    else:
        inputs_bytes = recomputed = 0.0
    if config.gradient_checkpointing is Checkpointing.OFFLOADED:
        inputs_bytes = 0.0
    outside = batch.tokens * shape.hidden * (sizes.stream + 4)  # embeddings, and the input of the last norm
    widest = max(stack.intermediate * max(stack.routed, 1) for stack in shape.stacks)
    moving = batch.tokens * (2 * widest + shape.hidden) * sizes.compute / share
    return {"kept": kept + inputs_bytes + outside, "layer": recomputed + moving}


def _tokens(shape: ModelShape, cross: bool, batch: Batch) -> int:
    return batch.target_tokens if shape.encoder and cross else batch.tokens


def _logits(config: RunConfig, shape: ModelShape, batch: Batch, compute: int) -> tuple[float, float]:
    """Bytes of logits and loss at the end of the forward pass and at the beginning of the backward pass.

    Forward: logits, an fp32 copy of 16-bit logits, and log-probabilities. Backward: log-probabilities and the gradients of
    loss and logits, all in fp32.
    """
    if not config.task.generates:
        return 0.0, 0.0
    elements = batch.loss_tokens * shape.vocab / config.sequence_parallel_size
    return elements * (8 if compute == 4 else 4 + 4 + compute), elements * 12


def _moment(
    name: str, config: RunConfig, shape: ModelShape, batch: Batch, sizes: Sizes, live: dict[str, float]
) -> dict[str, float]:
    """The parts of the memory at a moment."""
    base = {"weights": float(sizes.weights), "optimizer": float(sizes.optimizer), "buffers": float(sizes.buffers)}
    before = sizes.gradients if config.gradient_accumulation_steps > 1 else 0
    forward, backward = _logits(config, shape, batch, sizes.compute)
    # The gradient of a tied embedding is a third tensor, the sum of those of embedding and head.
    table = 0 if config.method.adapts or shape.head else shape.table * sizes.gradient_format
    # The first layer's gradients replace its activations; those of the embeddings come last.
    layer = sizes.gradients * shape.largest_layer / max(shape.parameters, 1) if not config.method.adapts else 0.0
    starting = backward < live["layer"]
    moments: dict[str, dict[str, float]] = {
        "start": {"buffers": float(sizes.buffers) + sizes.start},
        "forward": {"activations": live["kept"], "logits": forward, "gradients": before},
        "backward": {"activations": live["kept"] + live["layer"], "gradients": before + table}
        if starting
        else {"activations": live["kept"], "logits": backward, "gradients": before},
        "gradients": {"activations": live["layer"], "gradients": sizes.gradients - layer}
        if live["layer"] > layer + 2 * table
        else {"gradients": sizes.gradients + 2 * table},
        "optimizer": {"gradients": sizes.gradients + float(sizes.step)},
    }
    return base | moments[name]


def _off_device(config: RunConfig, sizes: Sizes) -> tuple[int, int]:
    """Bytes in the machine's host memory and on its NVMe disk, for all processes."""
    ranks = config.num_processes
    parts = [(config.offload_optimizer, sizes.off_state), (config.offload_param, sizes.off_weights)]
    if config.strategy is Strategy.FSDP:
        parts = [(config.offload_param, sizes.off_state + sizes.off_weights)]
    elif config.optimizer.paged and config.offload_optimizer is Offload.NONE:
        parts.append((Offload.CPU, sizes.off_state))
    host = int(sum(amount for place, amount in parts if place is Offload.CPU))
    disk = int(sum(amount for place, amount in parts if place is Offload.NVME))
    return ranks * (host + PROCESS_BYTES), ranks * disk
