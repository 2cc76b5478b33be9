"""When device memory runs out: the settings of the next rung down, always with the same global batch. No torch.

The library's way shrinks the batch inside the process: under DeepSpeed it cannot, on several ranks they lose each other, and the
global batch shrinks along. Here the attempt ends on all ranks, and the next goes on from the last checkpoint.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from training.activations import Batch
from training.advice import step_seconds
from training.cards import like
from training.config import Checkpointing, Offload, RunConfig, Strategy, Task
from training.fields import settings
from training.model_families import read_shape
from training.model_shape import ShapeError
from training.rules import Machine, check

Changes = dict[str, Any]

_RECOMPUTED = (Checkpointing.NONE, Checkpointing.SELECTIVE, Checkpointing.FULL, Checkpointing.OFFLOADED)
_SHARDED: tuple[Changes, ...] = (
    {"strategy": "zero2"},
    {"strategy": "zero2", "offload_optimizer": "cpu"},
    {"strategy": "zero3", "offload_optimizer": "cpu"},
    {"strategy": "zero3", "offload_optimizer": "cpu", "offload_param": "cpu"},
)
_FSDP_OFFLOADED: Changes = {"offload_param": "cpu"}


def next_rung(
    config: RunConfig,
    machine: Machine,
    *,
    part: str,
    has_checkpoint: bool,
    half_helps: bool = True,
    tokens: int = 0,
) -> Changes | None:
    """The settings that the next attempt takes after memory ran out in `part` of a step, or in a phase; None where none is left.

    First what leaves checkpoints as they are: half the micro batch and recomputed activations, by the speed that they should have
    where the GPU, the model's shape and the `tokens` of the micro batch are known, else in this order; half the batch comes last
    where one long row is most of it (not `half_helps`). Without a checkpoint also another strategy, whose checkpoints would be
    of another kind. Only what helps where memory ran out counts: the optimizer's state and the weights do not hang on the batch.
    """
    of_the_batch = [*_of_the_batch(config, machine, part)]
    seconds = _seconds_of_step(config, machine, tokens)
    of_the_batch.sort(key=lambda changes: ("micro_batch_size" in changes and not half_helps, seconds(changes)))
    candidates = [*of_the_batch, *([] if has_checkpoint else _of_the_strategy(config, part))]
    return next((changes for changes in candidates if _allowed(config, changes, machine)), None)


def stepped_down(config: RunConfig, changes: Changes) -> RunConfig:
    """`config` with the settings of a rung.

    Raises:
        pydantic.ValidationError: a setting has no such value.
    """
    return RunConfig.model_validate(config.model_dump(mode="json") | changes)


def in_words(changes: Changes) -> str:
    """Settings and their values: "micro batch size 2, gradient accumulation 4"."""
    return ", ".join(f"{settings()[name].label.lower()} {value}" for name, value in changes.items())


def _of_the_batch(config: RunConfig, machine: Machine, part: str) -> Iterator[Changes]:
    """What leaves fewer activations: they fill the memory in forward and backward passes, and in an evaluation."""
    if part not in ("forward", "backward", "evaluation"):
        return
    if half := _half_batch(config):
        yield half
    if part != "evaluation":  # which keeps none for a backward pass
        kinds = (
            _RECOMPUTED if machine.kind == "cuda" else _RECOMPUTED[:-1]
        )  # what is offloaded lies in the host's memory
        for kind in kinds[_RECOMPUTED.index(config.gradient_checkpointing) + 1 :]:
            yield {"gradient_checkpointing": kind.value}


def _seconds_of_step(config: RunConfig, machine: Machine, tokens: int) -> Callable[[Changes], float]:
    """How long a step should take with a rung's settings; alike for all where that cannot be known."""
    try:
        shape = read_shape(Path(config.model) / "config.json")
    except ShapeError:
        return lambda _: 0.0
    if machine.kind != "cuda" or not machine.names or not tokens:
        return lambda _: 0.0
    card = like(machine.names[0], machine.memory_bytes[0])
    rows = config.micro_batch_size
    batch = Batch(rows, length=-(-tokens // rows), tokens=tokens, loss_tokens=tokens)
    return lambda changes: step_seconds(stepped_down(config, changes), shape, card, batch)


def _half_batch(config: RunConfig) -> Changes | None:
    """Half the micro batch or less, with as much more accumulation. None where there is no less."""
    together = config.micro_batch_size * config.gradient_accumulation_steps
    least = 2 if config.task is Task.KTO else 1  # which compares rows within a batch
    fitting = [size for size in range(least, config.micro_batch_size // 2 + 1) if together % size == 0]
    if not fitting:
        return None
    return {"micro_batch_size": fitting[-1], "gradient_accumulation_steps": together // fitting[-1]}


def _of_the_strategy(config: RunConfig, part: str) -> Iterator[Changes]:
    """What shards or offloads more than now; while the model is loaded, more of the weights themselves."""
    if config.deepspeed_config:
        return  # a person's own file says all that
    ladder = (_FSDP_OFFLOADED,) if config.strategy is Strategy.FSDP else _SHARDED
    for changes in ladder:
        more = stepped_down(config, changes)
        spares_weights = more.offload_param is not config.offload_param or _stage(more) > max(2, _stage(config))
        if _spares(more) > _spares(config) and (spares_weights or part != "loading model"):
            yield {name: value for name, value in changes.items() if getattr(config, name) != value}


def _spares(config: RunConfig) -> tuple[bool, int, bool]:
    """Grows from rung to rung."""
    offloads = config.offload_optimizer is not Offload.NONE
    return config.offload_param is not Offload.NONE, _stage(config), offloads


def _stage(config: RunConfig) -> int:
    return config.strategy.zero_stage or 0


def _allowed(config: RunConfig, changes: Changes, machine: Machine) -> bool:
    """Whether every rule that holds now holds with the changes too."""
    try:
        rung = stepped_down(config, changes)
    except ValidationError:
        return False
    broken = {conflict.settings for conflict in check(config, machine) if conflict.blocking}
    return not any(conflict.blocking and conflict.settings not in broken for conflict in check(rung, machine))
