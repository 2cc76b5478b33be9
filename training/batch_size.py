"""When memory runs out: a smaller micro batch with the same global batch, kept in the run's folder for the next attempt. No torch.

The library's way shrinks the batch inside the process: under DeepSpeed it cannot, on several ranks they lose each other, and the
global batch shrinks along. Here the attempt ends on all ranks, and the next goes on from the last checkpoint.
"""

import json
import os
from pathlib import Path

from training.config import RunConfig, Task
from training.failure import is_out_of_memory

FILE = "batch.json"


def smaller(config: RunConfig) -> RunConfig | None:
    """Half the micro batch or less, with as much more accumulation: the same global batch. None where there is no less."""
    together = config.micro_batch_size * config.gradient_accumulation_steps
    least = 2 if config.task is Task.KTO else 1  # which compares rows within a batch
    fitting = [size for size in range(least, config.micro_batch_size // 2 + 1) if together % size == 0]
    if not fitting:
        return None
    return config.model_copy(
        update={"micro_batch_size": fitting[-1], "gradient_accumulation_steps": together // fitting[-1]}
    )


def after(error: Exception, config: RunConfig | None, run_dir: Path) -> int | None:
    """The micro batch that the next attempt takes after `error`, and keeps; None where a smaller one would not help."""
    if config is None or not config.auto_batch_size or not is_out_of_memory(error):
        return None
    less = smaller(config)
    if less:
        remember(run_dir, less)
    return less.micro_batch_size if less else None


def explain(asked: RunConfig, fitted: RunConfig) -> str:
    """Why a run trains with another batch than asked, in a sentence."""
    return (
        f"Memory ran out with micro batches of {asked.micro_batch_size}: now {fitted.micro_batch_size}, with gradient accumulation "
        f"{fitted.gradient_accumulation_steps}. The global batch stays {fitted.global_batch_size}."
    )


def remember(run_dir: Path, config: RunConfig) -> None:
    """Keeps the batch of `config` for the next attempt; whichever rank says it, says the same."""
    part = run_dir / f"{FILE}.{os.getpid()}"  # several ranks may say so at once
    chosen = {name: getattr(config, name) for name in ("micro_batch_size", "gradient_accumulation_steps")}
    part.write_text(json.dumps(chosen), encoding="utf-8")
    part.replace(run_dir / FILE)


def recall(run_dir: Path, config: RunConfig) -> RunConfig:
    """The configuration with the batch that an earlier attempt was left with; one of another global batch is not minded."""
    try:
        chosen = json.loads((run_dir / FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return config
    fitted = config.model_copy(update=chosen)
    return fitted if config.auto_batch_size and fitted.global_batch_size == config.global_batch_size else config
