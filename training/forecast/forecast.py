"""Estimates the memory of a run from its settings and its model's config.json, in milliseconds. No torch.

The peak is the largest of the moments in formula/moments.py; formula/sizes.py computes what does not depend on the batch. All of
this is bytes on one rank.

Host memory is that of all ranks of a machine, at other moments. It was read from where training/models/placement.py,
training/checkpointing and transformers' Trainer put weights and states, for ranks with GPUs; on CPU the device is the host. Pages
of mapped files do not count, since the system can free them.
"""

from dataclasses import dataclass, field, replace

from training.config.choices import Offload, Quantization, Strategy
from training.config.run_config import RunConfig
from training.config.sharding import loads_on_devices, loads_on_one_rank
from training.forecast.formula.activations import Batch
from training.forecast.formula.batch_memory import task_shape
from training.forecast.formula.moments import MOMENTS, NOT_IN_STEPS, moments
from training.forecast.formula.sizes import Sizes, freed_in_backward, loaded_bytes, resolved, sizes_of
from training.forecast.gpus import GIB, Card
from training.model_info.shape import ModelShape
from training.units import byte_size

SLACK = 0.06
"""Memory that the caching allocator reserves but does not use: a share of everything but weights and optimizer state."""
DOUBT = 0.12
"""A share of the forecast. About 99 of 100 random configurations need no more than forecast, slack and this
(`python -m benchmarks.forecast --random`)."""
STEP_MARGIN = 0.05
"""A share of the simulated peak that a limit on CPU has to allow beyond it. About 99 of 100 random configurations need no more."""

PROCESS_BYTES = int(3.0 * GIB)
"""Host memory of a training process without offloaded state: Python, torch, CUDA's libraries."""
_FILE_BYTES = 50_000_000_000
"""transformers writes a model in files of this size at most, and has one in memory as it writes it."""
_BEFORE_VLLM = ("loading", "start", "check")
HOST_MOMENTS = {
    "loading": "while the weights are loaded",
    "training": "in training",
    "saving": "while the result is saved",
    "resuming": "while a checkpoint is loaded",
}


@dataclass(frozen=True)
class Forecast:
    """The estimated memory of a run on each rank, in bytes. `parts` is the peak by kind; it sums up to `peak_bytes`.

    `moments` has the sum of each moment. `allocated_bytes` is the peak without context and slack, as torch counts it.
    `host_bytes` is the most host memory that all ranks of a machine need, `host_moments` that of each moment, `copies_bytes` the
    part in training for asynchronous checkpoints (0 if they do not fit, and training waits for the disk), `nvme_bytes` their disk
    space. Limits are None if unknown.
    `unknown` is why the formula cannot say whether it fits: then the parts lack what its layers save for the backward pass.
    """

    parts: dict[str, int]
    moments: dict[str, int]
    host_bytes: int
    nvme_bytes: int
    limit_bytes: int | None
    host_limit_bytes: int | None
    trainable_parameters: int
    total_parameters: int
    batch: Batch
    copies_bytes: int = 0
    reasons: list[str] = field(default_factory=list)
    unknown: str = ""
    host_moments: dict[str, int] = field(default_factory=dict)

    @property
    def host_moment(self) -> str:
        return max(self.host_moments, key=lambda name: self.host_moments[name])

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

    @property
    def close(self) -> bool:
        """True if the limit is so close to the forecast that a simulated step has to decide."""
        if self.unknown or self.limit_bytes is None:
            return False
        host_suffices = self.host_limit_bytes is None or self.host_bytes <= self.host_limit_bytes
        return host_suffices and abs(self.limit_bytes - self.peak_bytes) <= DOUBT * self.peak_bytes

    def with_steps(self, simulated: int) -> int:
        """The peak in bytes of a run whose steps, as simulated, take `simulated` bytes."""
        return max(simulated, *(self.moments[name] for name in NOT_IN_STEPS))

    def beyond_steps(self, simulated: int) -> int:
        """The bytes that a run needs beyond `with_steps`: on a GPU the context, on CPU the slack, at least STEP_MARGIN."""
        return self.parts.get("context") or max(self.parts.get("slack", 0), int(STEP_MARGIN * simulated))


def full_batch(config: RunConfig) -> Batch:
    """A micro batch of rows of maximum length: the worst case for unknown data. Of prompts with samples, only these have a loss."""
    rows, length = config.micro_batch_size * (2 if config.task.traits.pairs else 1), config.max_length
    answer = config.max_completion_length if config.task.traits.samples else 0
    length += answer
    if config.task.traits.has_encoder:
        target = config.max_target_length or length
        return Batch(rows, length, rows * length, rows * target, target, rows * target)
    return Batch(rows, length, rows * length, rows * length, labeled=rows * answer)


def estimate(
    config: RunConfig,
    shape: ModelShape,
    *,
    card: Card | None = None,
    batch: Batch | None = None,
    host_limit_bytes: int | None = None,
    slack: float = SLACK,
) -> Forecast:
    """The forecast for a run on `card`, or on CPU if it is None. `batch` is its worst micro batch."""
    batch, shape = batch or full_batch(config), task_shape(config, shape)
    sizes = freed_in_backward(config, shape, sizes_of(config, shape, card))
    at = moments(config, shape, batch, sizes)
    if card:
        _add_vllm(at, config, card)
    worst = max(at.values(), key=lambda parts: sum(parts.values()))
    parts = {name: int(amount) for name, amount in worst.items() if amount}
    if card:
        parts["context"] = card.context_bytes + card.communication_bytes(config.num_processes)
    if card or config.memory_limit:
        moving = sum(amount for name, amount in worst.items() if name not in ("weights", "optimizer"))
        parts["slack"] = int(slack * moving)
    ranks = config.processes_per_machine
    if card and card.unified:  # processes and what they offload are in the same memory
        parts["context"] += PROCESS_BYTES + int(offloaded(config, sizes, Offload.CPU))
    copies = checkpoint_copies(config, sizes) if config.async_save else 0
    devices = 0 if card else ranks * sum(parts.values())  # without a GPU, the device is the host

    def on_host(copies: int) -> dict[str, int]:
        loaded = loaded_bytes(config, resolved(config.precision, card))
        at_host = host_moments(config, shape, sizes, loaded, copies, on_cuda=card is not None)
        return {name: amount + devices for name, amount in at_host.items()}

    if host_limit_bytes is not None and on_host(copies)["training"] > host_limit_bytes:
        copies = 0  # the ranks write such a checkpoint while training waits
    host = on_host(copies)
    nvme = int(ranks * offloaded(config, sizes, Offload.NVME))
    expected = Forecast(
        parts, {name: int(sum(sizes_.values())) for name, sizes_ in at.items()},
        max(host.values()), nvme,
        _limit(config, card, host_limit_bytes), host_limit_bytes, sizes.trained, sizes.total, batch, copies, host_moments=host,
    )  # fmt: skip
    expected.reasons.extend(_reasons(expected, card))
    if shape.unknown and not expected.reasons:
        expected.reasons.append(f"The formula cannot say: {shape.unknown}. Simulate a step.")
        return replace(expected, unknown=shape.unknown)
    return expected


def _add_vllm(at: dict[str, dict[str, float]], config: RunConfig, card: Card) -> None:
    """Adds what the vLLM beside each process takes: its share while it draws samples, and while it sleeps what its process
    keeps (its context); without sleep its share at each moment."""
    if not config.has_vllm_beside:
        return
    share = config.vllm_memory * card.memory_bytes
    for name, parts in at.items():
        takes = share if name == "sampling" or not config.vllm_sleep else card.context_bytes
        parts["vllm"] = 0.0 if name in _BEFORE_VLLM else takes


def _limit(config: RunConfig, card: Card | None, host_limit_bytes: int | None) -> int | None:
    """The bytes that a rank may take: the card's memory or the run's memory limit; None on a CPU without a limit."""
    memory, limit = card.memory_bytes if card else host_limit_bytes, config.memory_limit
    if limit is None:
        return card.memory_bytes if card else None
    if limit < 1:
        return int(memory * limit) if memory else None
    return min(int(limit * 2**20), card.memory_bytes) if card else int(limit * 2**20)


def _reasons(expected: Forecast, card: Card | None) -> list[str]:
    reasons = []
    if expected.limit_bytes is not None and expected.peak_bytes > expected.limit_bytes:
        largest = max(expected.parts, key=lambda name: expected.parts[name])
        where = card.label if card and expected.limit_bytes == card.memory_bytes else "memory_limit"
        reasons.append(
            f"Needs {byte_size(expected.peak_bytes)} per {'GPU' if card else 'process'} at {MOMENTS[expected.moment]}; {where} "
            f"{'has' if where != 'memory_limit' else 'allows'} {byte_size(expected.limit_bytes)}. "
            f"The largest part is {largest} with {byte_size(expected.parts[largest])}."
        )
    if expected.host_limit_bytes is not None and expected.host_bytes > expected.host_limit_bytes:
        reasons.append(
            f"Needs {byte_size(expected.host_bytes)} of host memory {HOST_MOMENTS[expected.host_moment]}; the machine has "
            f"{byte_size(expected.host_limit_bytes)}. "
            "The system would kill the training processes."
        )
    return reasons


def checkpoint_copies(config: RunConfig, sizes: Sizes) -> int:
    """Bytes of host memory that all ranks need to copy a checkpoint: trained weights, optimizer state and fp32 weights.

    With DeepSpeed and full fine-tuning, rank 0 also copies the weights that are saved for inference.
    """
    ranks, zero = config.num_processes, config.strategy.zero_stage
    if zero is None and config.strategy is not Strategy.FSDP:
        ranks = 1  # rank 0 saves for all
    state = ranks * (sizes.optimizer + sizes.off_state)
    weights = sizes.trained * sizes.gradient_format
    return int(state + weights * (2 if zero is not None and not config.method.adapts else 1))


def host_moments(
    config: RunConfig, shape: ModelShape, sizes: Sizes, loaded: int, copies: int, *, on_cuda: bool
) -> dict[str, int]:
    """The host memory of a machine's ranks at each moment, in bytes; on CPU only in training, without the forecast of each rank.

    `loaded` is the size of a weight as it is loaded, `copies` that of asynchronous checkpoints.
    """
    ranks = config.processes_per_machine
    kept, processes = ranks * offloaded(config, sizes, Offload.CPU), ranks * PROCESS_BYTES
    loading, training = (
        _loading(config, shape, loaded),
        kept + copies + (_vllm_on_host(config, shape, sizes) if on_cuda else 0),
    )
    moments = {
        "loading": loading,
        "training": training,
        "saving": kept + _saving(config, shape, sizes),
        "resuming": max(loading, kept + _resuming(config, sizes)),
    }
    return {name: int(processes + amount) for name, amount in moments.items() if on_cuda or name == "training"}


def _vllm_on_host(config: RunConfig, shape: ModelShape, sizes: Sizes) -> float:
    """Host memory of the processes of vLLM, with the weights of those that sleep."""
    asleep = shape.parameters * sizes.compute if config.vllm_sleep else 0
    return config.processes_per_machine * (PROCESS_BYTES + asleep) if config.has_vllm_beside else 0.0


def offloaded(config: RunConfig, sizes: Sizes, place: Offload) -> float:
    """Bytes that one rank offloads to the host or to its disk."""
    parts = [(config.offload_optimizer, sizes.off_state), (config.offload_param, sizes.off_weights)]
    if config.strategy is Strategy.FSDP:
        parts = [(config.offload_param, sizes.off_state + sizes.off_weights)]
    elif config.optimizer.traits.paged and config.offload_optimizer is Offload.NONE:
        parts.append((Offload.CPU, sizes.off_state))
    return sum(amount for chosen, amount in parts if chosen is place)


def _loading(config: RunConfig, shape: ModelShape, loaded: int) -> float:
    """Whole copies of the weights: one with FSDP, none with ZeRO-3, onto GPUs and of quantized weights, which are read tensor by
    tensor, and else one for each rank. Each rank reads a reference model while the model is still there."""
    ranks, whole = config.processes_per_machine, float(loaded * shape.parameters)
    reads_tensors = config.quantized is not Quantization.NONE or config.strategy is Strategy.ZERO3
    copies = 0 if reads_tensors or loads_on_devices(config) else 1 if loads_on_one_rank(config) else ranks
    return whole * (copies + (ranks if config.loads_reference and not reads_tensors else 0))


def _saving(config: RunConfig, shape: ModelShape, sizes: Sizes) -> float:
    """What rank 0 has of the result: all that trains where the ranks divide it, else a file."""
    zero = config.strategy.zero_stage
    if config.method.adapts or zero in (0, 1, 2):
        return float(sizes.trained * sizes.gradient_format)
    if zero == 3 or config.strategy is Strategy.FSDP:
        return float(shape.parameters * sizes.gradient_format)
    return float(min(shape.parameters * sizes.gradient_format, _FILE_BYTES))


def _resuming(config: RunConfig, sizes: Sizes) -> float:
    """What the ranks read of a checkpoint besides what they hold. DeepSpeed loads each rank's optimizer state and weights into host
    memory, one device the optimizer state; DDP reads onto the GPUs and FSDP into the shards."""
    ranks = config.processes_per_machine
    if config.strategy.zero_stage is not None:
        weights = 0.0 if config.strategy is Strategy.ZERO3 else float(sizes.trained * sizes.compute)
        return ranks * (sizes.optimizer + sizes.off_state + weights)
    return sizes.optimizer + sizes.off_state if config.strategy is Strategy.SINGLE else 0.0
