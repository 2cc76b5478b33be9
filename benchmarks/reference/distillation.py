"""Distillation one token at a time: the reference of task distill in command.py."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
import torch

from benchmarks.reference.cells import GLOBAL_BATCH
from benchmarks.reference.plain_loop import Step
from benchmarks.reference.samples import Sample, SampleLearner, prompt_of

_HELD_OUT_SEEDS = 12  # the last seed of the generator of a held-out sample


@dataclass
class StudentLearner(SampleLearner):
    """The mean divergence from a teacher over the tokens of samples, one to each row; a step has the numbers of its rows."""

    teacher: Any = None

    @property
    def epoch(self) -> int:
        return self._steps // ceil(len(self.rows) / GLOBAL_BATCH)

    def parts(self, step: Step) -> Iterator[torch.Tensor]:
        given, samples = self.samples_of_steps[self._steps], []
        for number in (number for micro in step for rank in micro for number in rank):
            samples.append(Sample(number, prompt_of(self.rows[number]), given[number]))
            if not self.is_drawn(samples[-1]):
                self.faults.append(f"drew sample {number} at step {self._steps + 1} as {given[number]}")
        self._steps += 1
        tokens = sum(len(sample.tokens) for sample in samples)
        for sample in samples:
            yield self._divergences(sample).sum() / tokens

    @torch.no_grad()
    def evaluate(self) -> float:
        """Returns the mean divergence over the tokens of one sample to each held-out prompt."""
        terms = [self._divergences(self._draw(number)) for number in range(len(self.held_out))]
        return float(torch.cat(terms).mean())

    def _draw(self, number: int) -> Sample:
        """Draws a sample: each token is the first at which the cumulative probability exceeds the next number."""
        longest = self.settings["max_completion_length"]
        seeds = [self.settings["seed"], 0, number, _HELD_OUT_SEEDS]
        sample = Sample(number, prompt_of(self.held_out[number]), [])
        for uniform in np.random.Generator(np.random.PCG64(seeds)).random(longest):
            logits = self.model(input_ids=torch.tensor([sample.prompt + sample.tokens])).logits[0, -1]
            sums = logits.double().softmax(-1).cumsum(-1)
            sample.tokens.append(int((sums > uniform * sums[-1]).nonzero()[0]))
            if sample.tokens[-1] == self.tokenizer.eos_token_id:
                break
        return sample

    def _divergences(self, sample: Sample) -> torch.Tensor:
        """Returns the divergence of each token, of shape (tokens,), in fp64: probabilities of tiny models differ little."""
        weight, own = self.settings.get("jsd_coefficient", 1.0), self.logits(sample).double().softmax(-1)
        with torch.no_grad():
            other = self.logits(sample, self.teacher).double().softmax(-1)
        if weight in (0.0, 1.0):
            first, second = (other, own) if weight == 0 else (own, other)
            divergence: torch.Tensor = (first * (first / second).log()).sum(-1)
            return divergence
        mean = weight * other + (1 - weight) * own
        terms: torch.Tensor = weight * other * (other / mean).log() + (1 - weight) * own * (own / mean).log()
        return terms.sum(-1)
