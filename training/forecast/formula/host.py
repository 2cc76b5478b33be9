"""Host memory that the ranks of one machine need at the moments of a run. No torch. All numbers are bytes of all its ranks.

Read from where training/models/placement.py, training/checkpointing and transformers' Trainer put weights and states, for ranks
with GPUs; on CPU the device is the host. Pages of mapped files do not count, since the system can free them.
"""

from training.config.choices import Offload, Quantization, Strategy, Task
from training.config.run_config import RunConfig
from training.config.sharding import loads_on_devices, loads_on_one_rank
from training.forecast.formula.sizes import Sizes
from training.forecast.gpus import GIB
from training.model_info.shape import ModelShape

PROCESS_BYTES = int(3.0 * GIB)
"""Host memory of a training process without offloaded state: Python, torch, CUDA's libraries."""
_FILE_BYTES = 50_000_000_000
"""transformers writes a model in files of this size at most, and has one in memory as it writes it."""
HOST_MOMENTS = {
    "loading": "while the weights are loaded",
    "training": "in training",
    "saving": "while the result is saved",
    "resuming": "while a checkpoint is loaded",
}


def host_moments(
    config: RunConfig, shape: ModelShape, sizes: Sizes, loaded: int, copies: int, *, on_cuda: bool
) -> dict[str, int]:
    """The host memory of a machine's ranks at each moment, in bytes; on CPU only in training, without the forecast of each rank.

    `loaded` is the size of a weight as it is loaded, `copies` that of asynchronous checkpoints.
    """
    ranks = config.processes_per_machine
    kept, processes = ranks * offloaded(config, sizes, Offload.CPU), ranks * PROCESS_BYTES
    loading, training = _loading(config, shape, loaded), kept + copies
    moments = {
        "loading": loading,
        "training": training,
        "saving": kept + _saving(config, shape, sizes),
        "resuming": max(loading, kept + _resuming(config, sizes)),
    }
    return {name: int(processes + amount) for name, amount in moments.items() if on_cuda or name == "training"}


def offloaded(config: RunConfig, sizes: Sizes, place: Offload) -> float:
    """Bytes that one rank offloads to the host or to its disk."""
    parts = [(config.offload_optimizer, sizes.off_state), (config.offload_param, sizes.off_weights)]
    if config.strategy is Strategy.FSDP:
        parts = [(config.offload_param, sizes.off_state + sizes.off_weights)]
    elif config.optimizer.paged and config.offload_optimizer is Offload.NONE:
        parts.append((Offload.CPU, sizes.off_state))
    return sum(amount for chosen, amount in parts if chosen is place)


def _loading(config: RunConfig, shape: ModelShape, loaded: int) -> float:
    """Whole copies of the weights: one with FSDP, none with ZeRO-3, onto GPUs and of quantized weights, which are read tensor by
    tensor, and else one for each rank. Each rank reads a reference model while the model is still there."""
    ranks, whole = config.processes_per_machine, float(loaded * shape.parameters)
    reads_tensors = config.quantized is not Quantization.NONE or config.strategy is Strategy.ZERO3
    copies = 0 if reads_tensors or loads_on_devices(config) else 1 if loads_on_one_rank(config) else ranks
    compares = config.task in (Task.DPO, Task.KTO) and not config.method.adapts and not reads_tensors
    return whole * (copies + (ranks if compares else 0))


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
