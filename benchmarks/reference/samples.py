"""Checks how samples were drawn, and computes the losses of GRPO one by one: the reference of task grpo in command.py.

A sample is drawn with the uniform numbers of its own generator: each token is the first at which the cumulative probability exceeds
the next number. The loop checks this for each token of a run's samples with its own weights. It takes them over, since rounding
decides where a number is at the boundary of two tokens.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from benchmarks.reference.plain_loop import Step, TokenLearner
from benchmarks.reference.rows import IGNORED, Row

_SEEDS = 11  # the last seed of a sample's generator
_SMALLEST = 1e-4  # added to the standard deviation of a group
_ROUNDING = 1e-5  # of cumulative probabilities


@dataclass
class Sample:
    """A sample and its number in the epoch.

    `old` and `reference` are the log probabilities of its tokens when it was drawn, and in the model without its adapter, each of
    shape (tokens,).
    """

    number: int
    prompt: list[int]
    tokens: list[int]
    advantage: float = 0.0
    old: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    reference: torch.Tensor = field(default_factory=lambda: torch.empty(0))


@dataclass
class SampleLearner(TokenLearner):
    """GRPO; a step has the numbers of its samples: row * num_generations + the number in the group.

    `samples_of_steps` has the tokens of the run's samples at each step by their number, and `faults` what is wrong with them.
    """

    settings: dict[str, Any]
    tokenizer: Any
    samples_of_steps: list[dict[int, list[int]]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    _steps: int = 0
    _samples: list[Sample] = field(default_factory=list)

    def parts(self, step: Step) -> Iterator[torch.Tensor]:
        given = self.samples_of_steps[self._steps]
        if self._steps % self.settings.get("num_iterations", 1) == 0:
            self._take([number for micro in step for rank in micro for number in rank], given)
        elif given != {sample.number: sample.tokens for sample in self._samples}:
            self.faults.append(f"has other samples at step {self._steps + 1} than at the step before")
        self._steps += 1
        tokens = sum(len(sample.tokens) for sample in self._samples)
        for sample in self._samples:
            terms = self._terms(sample)
            match self.settings["policy_loss"]:
                case "dapo":
                    yield terms.sum() / tokens
                case "grpo":
                    yield terms.mean() / len(self._samples)

    def evaluate(self) -> float:
        """Returns minus the mean reward of greedy answers."""
        rewards = [self._reward(row, self._likeliest(prompt_of(row))) for row in self.held_out]
        return -sum(rewards) / len(rewards)

    def _take(self, numbers: list[int], given: dict[int, list[int]]) -> None:
        """Takes over new samples, and computes their advantages."""
        each, samples = self.settings["num_generations"], []
        for number in numbers:
            sample = Sample(number, prompt_of(self.rows[number // each]), given[number])
            if not self.is_drawn(sample):
                self.faults.append(f"drew sample {number} at step {self._steps + 1} as {sample.tokens}")
            with torch.no_grad():
                sample.old = self._logps(sample)
                if self.settings.get("kl_coefficient"):
                    with self.model.disable_adapter():
                        sample.reference = self._logps(sample)
            samples.append(sample)
        groups: dict[int, list[float]] = {}
        rewards = [self._reward(self.rows[sample.number // each], sample.tokens) for sample in samples]
        for sample, reward in zip(samples, rewards, strict=True):
            groups.setdefault(sample.number // each, []).append(reward)
        for sample, reward in zip(samples, rewards, strict=True):
            group = np.array(groups[sample.number // each])
            sample.advantage = float((reward - group.mean()) / (group.std(ddof=1) + _SMALLEST))
        self._samples = samples

    @property
    def epoch(self) -> int:
        """The epoch of the current step."""
        return 0  # of all steps

    @torch.no_grad()
    def is_drawn(self, sample: Sample) -> bool:
        """True if each token is the one that the sample's numbers select, and the last one is its first end or the longest."""
        longest, tokens = self.settings["max_completion_length"], torch.tensor(sample.tokens)
        seeds = [self.settings["seed"], self.epoch, sample.number, _SEEDS]
        uniform = torch.from_numpy(np.random.Generator(np.random.PCG64(seeds)).random(longest)[: len(tokens)])
        upper = self.logits(sample).double().softmax(-1).cumsum(-1)
        places = torch.arange(len(tokens)), tokens
        lower = torch.where(tokens > 0, upper[places[0], tokens - 1], 0.0)
        ends = tokens == self.tokenizer.eos_token_id
        ended = bool(ends[-1]) or len(tokens) == longest
        selected = ((lower - _ROUNDING <= uniform) & (uniform <= upper[places] + _ROUNDING)).all()
        return bool(selected) and ended and not bool(ends[:-1].any())

    @torch.no_grad()
    def _likeliest(self, prompt: list[int]) -> list[int]:
        """Returns the likeliest tokens after a prompt, up to the end token."""
        tokens: list[int] = []
        while len(tokens) < self.settings["max_completion_length"]:
            logits = self.model(input_ids=torch.tensor([prompt + tokens])).logits[0, -1]
            tokens.append(int(logits.argmax()))
            if tokens[-1] == self.tokenizer.eos_token_id:
                break
        return tokens

    def _reward(self, row: Row, tokens: list[int]) -> float:
        answer, expected = (
            self.tokenizer.decode(part, skip_special_tokens=True).strip()
            for part in (tokens, [label for label in row.labels if label != IGNORED])
        )
        return len(set(answer)) / 10 + (len(answer) == len(expected)) / 4

    def logits(self, sample: Sample, model: Any = None) -> torch.Tensor:
        """Returns the logits of each token in the learner's or another model, of shape (tokens, vocabulary)."""
        logits: torch.Tensor = (model or self.model)(input_ids=torch.tensor([sample.prompt + sample.tokens])).logits[0]
        return logits[len(sample.prompt) - 1 : -1]

    def _logps(self, sample: Sample) -> torch.Tensor:
        places = torch.arange(len(sample.tokens)), torch.tensor(sample.tokens)
        return self.logits(sample).log_softmax(-1)[places]

    def _terms(self, sample: Sample) -> torch.Tensor:
        """Returns the loss of each token."""
        logps, low, high = self._logps(sample), self.settings.get("clip_low", 0.2), self.settings.get("clip_high", 0.28)
        ratio = (logps - sample.old).exp()
        terms = -torch.minimum(ratio * sample.advantage, ratio.clamp(1 - low, 1 + high) * sample.advantage)
        if weight := self.settings.get("kl_coefficient"):
            distance = sample.reference - logps
            terms = terms + weight * ratio * (distance.exp() - distance - 1)
        return terms


def prompt_of(row: Row) -> list[int]:
    """Returns the tokens before the answer."""
    return [token for token, label in zip(row.ids, row.labels, strict=True) if label == IGNORED]
