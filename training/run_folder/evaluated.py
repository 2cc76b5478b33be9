"""What a run is measured by: a loss, or a reward, of which its losses are the negative where they are compared."""

import math
from collections.abc import Mapping

from training.config.task import traits_of

LOSS, REWARD = "loss", "reward"


def evaluated(task: object, loss: float | None) -> tuple[str, float | None]:
    """The name of what this task is measured by, LOSS or REWARD, and its value for an evaluation loss or a final one."""
    if not traits_of({"task": task}).rewards_samples:
        return LOSS, loss
    return REWARD, None if loss is None else -loss + 0.0  # no negative zero


def final_loss(metrics: Mapping[str, float | None]) -> float | None:
    """The loss of a step with these metrics; with rewards minus their mean, since the loss of samples is about 0. None if no reward
    applies."""
    if REWARD not in metrics:
        return metrics["loss"]
    reward = metrics[REWARD]
    return None if reward is None or math.isnan(reward) else -reward
