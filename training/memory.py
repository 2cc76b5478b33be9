"""How much memory a run takes, worked out from its settings and its model's config.json: milliseconds, no torch.

A run is looked at in five moments, and the largest of them is the peak: its start, the end of the forward pass, the beginning of
the backward pass (all activations live, and the gradients of the logits), its end (all gradients live), and the optimizer's step.
What does not hang on the batch is in training/memory_sizes.py, activations in training/activations.py. All numbers are bytes on
one rank.
"""

from dataclasses import dataclass, field

from training.activations import Batch, Formats, layer_bytes
from training.cards import GIB, Card
from training.config import (
    Checkpointing,
    Offload,
    RunConfig,
    Strategy,
    Task,
)
from training.memory_sizes import Sizes, sizes_of
from training.model_shape import ModelShape

CONTEXT_BYTES = int(0.45 * GIB)
"""What CUDA, its kernels and cuBLAS take of a GPU before torch has anything: 0.3 to 0.6 GiB on cards since Volta."""
COMMUNICATION_BYTES = int(0.35 * GIB)
"""NCCL's buffers and channels on each GPU of a group."""
SLACK = 0.06
"""What the caching allocator holds beyond what is live: a share of all that comes and goes within a step."""
PROCESS_BYTES = int(3.0 * GIB)
"""Host memory of a training process besides what is offloaded to it: Python, torch, CUDA's libraries."""
MOMENTS = {
    "start": "the start, when the ranks share the weights",
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
    if card is None:  # the device's memory is the host's
        host += config.num_processes * sum(parts.values())
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
    # The first layer's own gradients come when its activations go; the embeddings' come at the very end.
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
    """Bytes in host memory, of all processes on the machine, and on its NVMe disk."""
    ranks = config.num_processes
    parts = [(config.offload_optimizer, sizes.off_state), (config.offload_param, sizes.off_weights)]
    if config.strategy is Strategy.FSDP:
        parts = [(config.offload_param, sizes.off_state + sizes.off_weights)]
    elif config.optimizer.paged and config.offload_optimizer is Offload.NONE:
        parts.append((Offload.CPU, sizes.off_state))
    host = int(sum(amount for to, amount in parts if to is Offload.CPU))
    disk = int(sum(amount for to, amount in parts if to is Offload.NVME))
    return ranks * (host + PROCESS_BYTES), ranks * disk
