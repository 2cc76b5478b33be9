"""The settings of the next attempt after an out-of-memory error, with the same global batch size. No torch.

accelerate's `find_executable_batch_size` retries within the process: it does not work with DeepSpeed or several ranks, and it
changes the global batch size. Here the attempt ends on all ranks, and the next one resumes from the last checkpoint.

`first_step` is what the diagnosis of a log and the forecast on a page propose: the same next rung of the ladder or, where none is
left, a setting that changes the result and that a person has to choose: 4-bit base weights, or an optimizer with a smaller state.
"""

import math
from collections.abc import Callable, Iterator
from pathlib import Path

from pydantic import ValidationError

from training.config.choices import Checkpointing, ChunkedLoss, Method, Offload, Quantization, Strategy
from training.config.machine import Machine
from training.config.optimizer_name import OptimizerName
from training.config.run_config import Changes, RunConfig, stepped_down
from training.forecast.forecast import estimate, full_batch
from training.forecast.formula.activations import Batch
from training.forecast.gpus import like, of_machine
from training.forecast.roofline import step_seconds
from training.model_info.config_json import CONFIG_FILE, ModelError
from training.model_info.families import read_shape
from training.model_info.shape import ModelShape
from training.rules import check
from training.rules.memory import LEAST_VOCABULARY
from training.run_folder.events import GENERATION, OutOfMemory

_RECOMPUTED = (Checkpointing.NONE, Checkpointing.SELECTIVE, Checkpointing.FULL, Checkpointing.OFFLOADED)
_SHARDED: tuple[Changes, ...] = (
    {"strategy": "zero2"},
    {"strategy": "zero2", "offload_optimizer": "cpu"},
    {"strategy": "zero3", "offload_optimizer": "cpu"},
    {"strategy": "zero3", "offload_optimizer": "cpu", "offload_param": "cpu"},
)
_LEAST_SHARE = 0.15
"""Of a device's memory, below which vLLM has little room for samples beside its weights."""
_FSDP_OFFLOADED: Changes = {"offload_param": "cpu"}
LOADING, OPTIMIZER = "loading model", "optimizer"
PART_OF = {
    "loading": LOADING, "start": LOADING, "check": "forward", "forward": "forward", "backward": "backward", "layer": "backward",
    "encoder": "backward", "gradients": "backward", "optimizer": OPTIMIZER, "evaluating": "forward", "sampling": GENERATION,
    "saving": "saving",
}  # fmt: skip
"""The part of a step in which the moment of a forecast's peak lies (training/forecast/forecast.py)."""


def next_rung_after(
    report: OutOfMemory, config: RunConfig, machine: Machine, *, has_checkpoint: bool
) -> Changes | None:
    """The settings with which the next attempt needs less memory; None if none are left.

    `config` is what the attempt ran with, `machine` the devices that it ran on.
    """
    return next_rung(
        config,
        machine,
        part=report.part or report.phase,
        has_checkpoint=has_checkpoint,
        half_helps=_half_helps(report),
        tokens=math.prod(report.tensors[0]["shape"]) if report.tensors else 0,
    )


def _half_helps(report: OutOfMemory) -> bool:
    """False if the rank's rows are laid end to end and one of them is at least half of the batch."""
    tokens: list[int] = next((batch["tokens"] for batch in report.batches if batch["rank"] == report.rank), [])
    flat = len(tokens) > 1 and bool(report.tensors) and report.tensors[0]["shape"][0] == 1
    return not flat or max(tokens) < sum(tokens) / 2


def next_rung(
    config: RunConfig,
    machine: Machine,
    *,
    part: str,
    has_checkpoint: bool,
    half_helps: bool = True,
    tokens: int = 0,
) -> Changes | None:
    """The changes for the next attempt after an out-of-memory error in `part` of a step, or in a phase; None if none is left.

    First come changes that cost nothing (`_free_changes`), then others that keep checkpoints valid: half the micro batch, and
    gradient checkpointing. These are ordered by estimated speed if the GPU, the model's shape and the `tokens` of the micro batch
    are known, else as listed. Half the batch comes last if one long row fills most of it (`half_helps` is False). Without a
    checkpoint, strategies follow, since each has its own
    kind of checkpoint. Only changes that reduce the memory of `part` count: optimizer state does not depend on the batch.
    """
    batch_changes = [*_batch_changes(config, machine, part)]
    seconds = _seconds_of_step(config, machine, tokens)
    batch_changes.sort(key=lambda changes: ("micro_batch_size" in changes and not half_helps, seconds(changes)))
    candidates = [
        *_free_changes(config, part),
        *_vllm_changes(config),
        *batch_changes,
        *([] if has_checkpoint else _strategy_changes(config, part)),
    ]
    return next((changes for changes in candidates if _allowed(config, changes, machine)), None)


def _free_changes(config: RunConfig, part: str) -> Iterator[Changes]:
    """Yields changes that cost neither quality nor speed: the loss in chunks where it was turned off, and the optimizer's steps
    in the backward pass where nothing is clipped (elsewhere a rule refuses them)."""
    at_once = config.chunked_loss is ChunkedLoss.OFF and config.task.traits.chunks_loss
    shape = local_shape(config) if at_once and part in ("forward", "backward", "evaluation") else None
    if shape and shape.vocab >= LEAST_VOCABULARY:
        yield {"chunked_loss": "auto"}
    if part in ("backward", OPTIMIZER) and config.method is Method.FULL and not config.optimizer_in_backward:
        yield {"optimizer_in_backward": True}


def _vllm_changes(config: RunConfig) -> Iterator[Changes]:
    """Yields changes that leave more memory to the model, whatever the part: vLLM that sleeps, half its share, and none."""
    if not config.has_vllm_beside:
        return
    if not config.vllm_sleep:
        yield {"vllm_sleep": True}
    elif config.vllm_memory > _LEAST_SHARE:
        yield {"vllm_memory": max(config.vllm_memory / 2, _LEAST_SHARE)}
    yield {"generation": "model"}


def local_shape(config: RunConfig) -> ModelShape | None:
    """The shape of the model in a folder, where a formula knows its layers."""
    try:
        return read_shape(Path(config.model) / CONFIG_FILE)
    except ModelError:
        return None


def _batch_changes(config: RunConfig, machine: Machine, part: str) -> Iterator[Changes]:
    """Yields changes that reduce what the micro batch takes: activations, and in generation past keys and values."""
    if part not in ("forward", "backward", "evaluation", GENERATION):
        return
    if half := _half_batch(config):
        yield half
    if part in ("forward", "backward"):  # the others store no activations for a backward pass
        # On CPU, offloaded activations stay in the same memory.
        kinds = _RECOMPUTED if machine.kind == "cuda" else _RECOMPUTED[:-1]
        for kind in kinds[_RECOMPUTED.index(config.gradient_checkpointing) + 1 :]:
            yield {"gradient_checkpointing": kind.value}
        if not config.offload_activations:
            yield {"offload_activations": True}


def _seconds_of_step(config: RunConfig, machine: Machine, tokens: int) -> Callable[[Changes], float]:
    """A function that estimates the seconds of a step with changed settings; always 0 if that is unknown."""
    shape = local_shape(config)
    if shape is None or machine.kind != "cuda" or not machine.names or not tokens:
        return lambda _: 0.0
    card = like(machine.names[0], machine.memory_bytes[0])
    rows = config.micro_batch_size
    batch = Batch(rows, length=-(-tokens // rows), tokens=tokens, loss_tokens=tokens)
    return lambda changes: step_seconds(stepped_down(config, changes), shape, card, batch)


def _half_batch(config: RunConfig) -> Changes | None:
    """At most half the micro batch size, with more accumulation; None if there is no smaller size."""
    together = config.micro_batch_size * config.gradient_accumulation_steps
    least = config.task.traits.least_micro_batch  # KTO compares rows within a batch
    fitting = [size for size in range(least, config.micro_batch_size // 2 + 1) if together % size == 0]
    if not fitting:
        return None
    return {"micro_batch_size": fitting[-1], "gradient_accumulation_steps": together // fitting[-1]}


def _strategy_changes(config: RunConfig, part: str) -> Iterator[Changes]:
    """Yields strategies that shard or offload more; if loading the model failed, only those that do so with the weights."""
    if config.deepspeed_config:
        return  # the user's own DeepSpeed JSON decides this
    ladder = (_FSDP_OFFLOADED,) if config.strategy is Strategy.FSDP else _SHARDED
    for changes in ladder:
        changed = stepped_down(config, changes)
        shards_weights = _stage(changed) > max(2, _stage(config)) and config.num_processes > 1
        saves_weights = changed.offload_param is not config.offload_param or shards_weights
        if _savings(changed) > _savings(config) and (saves_weights or part != LOADING):
            yield {name: value for name, value in changes.items() if getattr(config, name) != value}


def _savings(config: RunConfig) -> tuple[bool, int, bool]:
    """Orders strategies by the memory that they save."""
    offloads = config.offload_optimizer is not Offload.NONE
    return config.offload_param is not Offload.NONE, _stage(config), offloads


def _stage(config: RunConfig) -> int:
    return config.strategy.zero_stage or 0


def _allowed(config: RunConfig, changes: Changes, machine: Machine) -> bool:
    try:
        rung = stepped_down(config, changes)
    except ValidationError:
        return False
    broken = {conflict.settings for conflict in check(config, machine) if conflict.blocking}
    return not any(conflict.blocking and conflict.settings not in broken for conflict in check(rung, machine))


def first_step(
    config: RunConfig,
    machine: Machine,
    *,
    part: str,
    has_checkpoint: bool = False,
    tokens: int = 0,
    shape: ModelShape | None = None,
) -> Changes | None:
    """The changes to try first after an out-of-memory error in `part` of a step, or in a phase; None if none is left.

    The arguments are those of `next_rung`. `shape` is read from the model's folder if it is not given.
    """
    rung = next_rung(config, machine, part=part, has_checkpoint=has_checkpoint, tokens=tokens)
    if rung:
        return rung
    for changes in _chosen_by_hand(config, part):
        if _allowed(config, changes, machine) and saves_memory(config, changes, machine, shape):
            return changes
    return None


def saves_memory(config: RunConfig, changes: Changes, machine: Machine, shape: ModelShape | None = None) -> bool:
    """True if the forecast of the changed run is lower; False for 4-bit weights of a model whose shape is unknown."""
    shape = shape or local_shape(config)
    if shape is None:
        return "quantization" not in changes
    card, batch = of_machine(machine), full_batch(config)
    before, after = (
        estimate(one, shape, card=card, batch=batch).peak_bytes for one in (config, stepped_down(config, changes))
    )
    return after < before


def _chosen_by_hand(config: RunConfig, part: str) -> list[Changes]:
    """Settings that save memory of a part and change the result."""
    ways: list[Changes] = []
    if part == OPTIMIZER and config.optimizer is OptimizerName.ADAMW and config.method is Method.FULL:
        ways.append({"optimizer": "adamw_8bit"})
    if config.method is Method.LORA and config.quantized is Quantization.NONE:
        ways.append({"method": "qlora", "quantization": "4bit"})
    return ways
