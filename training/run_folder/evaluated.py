"""What the evaluations of a run measure: a loss, or a reward, of which the evaluation loss is the negative."""

from training.config.choices import Task

LOSS, REWARD = "loss", "reward"


def evaluated(task: object, loss: float | None) -> tuple[str, float | None]:
    """The name of what evaluations of this task measure, LOSS or REWARD, and its value for an evaluation loss."""
    if task != Task.GRPO:
        return LOSS, loss
    return REWARD, None if loss is None else -loss + 0.0  # no negative zero
