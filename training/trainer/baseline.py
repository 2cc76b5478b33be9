"""The samples of the untrained model, drawn before the first step: whether there is anything to learn from their rewards."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from training.config.run_config import RunConfig
from training.errors import NothingToLearn
from training.trainer.advantages import Advantages
from training.units import duration

_EQUAL = 1e-8  # rewards that differ by less are equal, as for the metric all_equal_groups
_MANY_EQUAL = 0.85  # of the prompts
_MANY_CUT_OFF = 0.5  # of the samples
_ANYWAY = "Set baseline_prompts to 0 to train anyway."


class Compared(NamedTuple):
    """The rewards that the expected answers of the same prompts get, and wrong ones, as far as one applies; `answered`: there are
    expected answers."""

    expected: Sequence[float]
    wrong: Sequence[float]
    answered: bool = True


@dataclass(frozen=True)
class Baseline:
    """The samples of the untrained model, and the `seconds` that they took."""

    drawn: Advantages
    config: RunConfig
    seconds: float

    def check(self, compare: Callable[[], Compared], causes: str = "") -> None:
        """Checks that some prompt has samples with different rewards: others have no gradient. `causes` says why samples have no
        reward, as far as it is known.

        Raises:
            NothingToLearn: none has.
        """
        count, rewards = len(self.drawn.samples), self.rewards
        every = f"all {count:,} samples of the untrained model"
        if not len(rewards):
            message = f"No reward applies to any of {count:,} samples of the untrained model. {causes}"
            raise NothingToLearn("", None, message.strip(), _TRY)
        if self.drawn.equal_groups < 1 or self.lost:  # those that were lost may have other rewards
            return
        if self.drawn.metrics()["cut_off"] == 1 and rewards.max() <= 0:
            longest = self.config.max_completion_length
            message = f"{every} are cut off after {longest:,} tokens, and those of a prompt get the same (at most "
            message += f"{rewards.max():.3g}), so that nothing can be learned."
            fix = f"Raise it, for example to {4 * longest:,}, or ask for shorter answers in the prompts."
            raise NothingToLearn("max_completion_length", longest, message, f"{fix} {_ANYWAY}")
        if rewards.min() < rewards.max():
            message = (
                f"the samples of each of {self.prompts:,} prompts have equal rewards, so that nothing can be learned."
            )
            fix = "Raise num_generations or temperature, or use rewards that tell better samples from worse ones."
            raise _hopeless(message, fix)
        raise self._all_alike(every, compare())

    def _all_alike(self, every: str, compared: Compared) -> NothingToLearn:
        """The error for samples with one reward. What other answers get tells whether it is the highest one: a reward that takes
        points away gives at most 0."""
        reward, expected = float(self.rewards.max()), compared.expected
        alike = f"{every} get {reward:.3g}, so that nothing"
        if _any_above(expected, reward):
            message = f"{alike} can be learned. The expected answers get {np.mean(expected):.3g} on average: the rewards work, and "
            fix = "Train it on the expected answers first (task sft), or choose easier prompts."
            return _hopeless(f"{message}the prompts are too hard for this model.", fix)
        if reward > 0 or _any_above([-value for value in (*expected, *compared.wrong)], -reward):
            expectation = "The expected answers get no more, and other" if compared.answered else "Empty"
            lower = "" if reward > 0 else f" {expectation} answers less."
            return _hopeless(
                f"{alike} is left to learn.{lower}", "Choose harder prompts, or rewards that ask for more."
            )
        if not compared.answered:
            return _hopeless(
                f"{alike} can be learned: the prompts are too hard for this model, or a reward is wrong.", _TRY
            )
        told = "get the same" if expected else "have no reward"
        return _hopeless(f"{alike} can be learned. The expected answers {told}: probably a reward is wrong.", _TRY)

    def note(self, steps: int) -> str:
        """What the samples tell, with the time that drawing and scoring those of `steps` steps takes at this rate."""
        metrics, count = self.drawn.metrics(), len(self.drawn.samples)
        differ = round((1 - self.drawn.equal_groups) * self.prompts)
        sentence = (
            f"The untrained model has a mean reward of {metrics['reward']:.3g} over {count:,} samples. Of {self.prompts:,} "
            f"prompts, {differ:,} have samples with different rewards. {metrics['cut_off']:.0%} of the samples are cut "
            f"off; their mean length is {metrics['completion_length']:.3g} tokens."
        )
        whole = self.seconds / count * self.config.global_batch_size * steps / self.config.iterations
        return f"{sentence} They took {duration(self.seconds)}; at this rate, those of all {steps:,} steps take {duration(whole)}."

    def warnings(self) -> list[str]:
        """What makes a step teach less than it could, each with its fix."""
        metrics, warnings = self.drawn.metrics(), []
        if self.lost and self.drawn.equal_groups == 1:
            warnings.append(
                f"{self.lost:,} of {len(self.drawn.samples):,} samples of the untrained model have no score, and the others of "
                "a prompt have equal rewards: it is not known whether anything can be learned."
            )
            return warnings
        if self.drawn.equal_groups >= _MANY_EQUAL:
            warnings.append(
                f"{self.drawn.equal_groups:.0%} of the prompts have samples with equal rewards, which change nothing (mean "
                f"reward {metrics['reward']:.3g}). {'Choose harder prompts.' if self._mostly_solved else _EASIER}"
            )
        if metrics["cut_off"] >= _MANY_CUT_OFF:
            warnings.append(
                f"{metrics['cut_off']:.0%} of the untrained model's samples are cut off after "
                f"{self.config.max_completion_length:,} tokens. Raise max_completion_length, or reward short answers."
            )
        return warnings

    @property
    def rewards(self) -> NDArray[np.float64]:
        """The rewards of the samples to which one applies, of shape (samples,)."""
        return np.array([sample.reward for sample in self.drawn.samples if sample.reward is not None])

    @property
    def lost(self) -> int:
        """The number of samples for which a reward failed."""
        return sum(sample.lost for sample in self.drawn.samples)

    @property
    def prompts(self) -> int:
        return len(self.drawn.samples) // self.config.num_generations

    @property
    def _mostly_solved(self) -> bool:
        """True if most samples get the highest reward."""
        return bool(np.mean(self.rewards == self.rewards.max()) > 0.5)


_TRY = "Look at the samples, and try the rewards on rows: lathe reward."
_EASIER = "Choose easier prompts, raise num_generations, or train on the expected answers first (task sft)."


def _any_above(rewards: Sequence[float], limit: float) -> bool:
    return max(rewards, default=-math.inf) > limit + _EQUAL


def _hopeless(message: str, fix: str) -> NothingToLearn:
    return NothingToLearn("", None, message[0].upper() + message[1:], f"{fix} {_ANYWAY}")
