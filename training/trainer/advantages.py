"""Advantages of samples: how much better each scored than the others of its group (Shao et al. 2024, section 4.1)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from training.config.choices import ScaleRewards
from training.config.run_config import RunConfig
from training.trainer.sample_records import Scored

_SMALLEST = 1e-4  # added to a standard deviation, as in trl


@dataclass(frozen=True)
class Advantages:
    """The samples of a step on all ranks, and the advantage of each by its number."""

    samples: Sequence[Scored]
    values: Mapping[int, float]
    equal_groups: float

    def of(self, mine: Sequence[Scored]) -> list[float]:
        """The advantages of a rank's samples; 0 for a repeated one, which does not count."""
        return [0.0 if scored.repeats else self.values[scored.sample] for scored in mine]

    def metrics(self) -> dict[str, float]:
        """Means over the samples of a step, by name; `all_equal_groups` is the share of prompts with equal rewards."""
        rewards = np.array([np.nan if one.reward is None else one.reward for one in self.samples])
        counted = rewards[~np.isnan(rewards)]
        metrics = {
            "reward": float(counted.mean()) if len(counted) else float("nan"),
            "reward_std": float(counted.std(ddof=1)) if len(counted) > 1 else 0.0,
            "all_equal_groups": self.equal_groups,
            "completion_length": float(np.mean([one.tokens for one in self.samples])),
            "cut_off": float(np.mean([not one.ended for one in self.samples])),
            "unscored": float(np.isnan(rewards).mean()),
        }
        for name in self.samples[0].scores:
            scores = [one.scores[name] for one in self.samples]
            known = [score for score in scores if score is not None]
            metrics[f"reward/{name}"] = float(np.mean(known)) if known else float("nan")
        return metrics


def advantages(ranks: Sequence[Sequence[Scored]], config: RunConfig) -> Advantages:
    """The advantages of the samples of all ranks: (reward - mean of the group) / (standard deviation + 1e-4).

    A sample to which no reward applies has the advantage 0 and is not in the mean.
    """
    samples = sorted((one for rank in ranks for one in rank if not one.repeats), key=lambda one: one.sample)
    rewards = np.array([np.nan if one.reward is None else one.reward for one in samples])
    _, groups = np.unique([one.sample // config.num_generations for one in samples], return_inverse=True)
    means, deviations = _by_group(rewards, groups)
    centered = rewards - means[groups]
    match config.scale_rewards:
        case ScaleRewards.GROUP:
            centered /= deviations[groups] + _SMALLEST
        case ScaleRewards.BATCH:
            known = rewards[~np.isnan(rewards)]
            centered /= (known.std(ddof=1) if len(known) > 1 else 0.0) + _SMALLEST
        case ScaleRewards.NONE:
            pass
    values = dict(zip((one.sample for one in samples), np.nan_to_num(centered).tolist(), strict=True))
    return Advantages(samples, values, float(np.isclose(deviations, 0).mean()))


def _by_group(rewards: np.ndarray, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mean and the sample standard deviation of the rewards of each group, without NaN; 0 where there are none."""
    known, count = ~np.isnan(rewards), int(groups.max()) + 1
    numbers = np.bincount(groups[known], minlength=count)
    means = np.bincount(groups[known], rewards[known], minlength=count) / np.maximum(numbers, 1)
    squares = (rewards[known] - means[groups[known]]) ** 2
    return means, np.sqrt(np.bincount(groups[known], squares, minlength=count) / np.maximum(numbers - 1, 1))
