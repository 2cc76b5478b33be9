"""RunConfig.lr_scheduler -> its name in transformers, and its arguments."""

from typing import Any

from training.config import RunConfig, Scheduler

_NAMES = {Scheduler.WSD: "warmup_stable_decay", Scheduler.REDUCE_ON_PLATEAU: "reduce_lr_on_plateau"}


def scheduler_name(config: RunConfig) -> str:
    return _NAMES.get(config.lr_scheduler, config.lr_scheduler.value)


def scheduler_arguments(config: RunConfig, total_steps: int | None = None) -> dict[str, Any]:
    """The arguments of the run's own scheduler; those that follow from the length of the run need its `total_steps`."""
    match config.lr_scheduler:
        case Scheduler.COSINE_WITH_MIN_LR:
            return {"min_lr_rate": config.min_lr_ratio}
        case Scheduler.COSINE_WITH_RESTARTS:
            return {"num_cycles": config.lr_cycles}
        case Scheduler.REDUCE_ON_PLATEAU:
            smallest = config.learning_rate * config.min_lr_ratio
            return {"factor": config.plateau_factor, "patience": config.plateau_patience, "min_lr": smallest}
        case Scheduler.WSD if total_steps:
            decay = max(1, round(total_steps * config.decay_share))
            return {"num_decay_steps": decay, "min_lr_ratio": config.min_lr_ratio}
    return {}
