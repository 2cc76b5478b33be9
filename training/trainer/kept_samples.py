"""The samples of a step on which further steps train: in memory, and in the checkpoints between these steps."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from training.ranks.distributed import gathered
from training.trainer.prompts import SAMPLER_LOGPS

FILE = "samples.json"


@dataclass(frozen=True)
class KeptSample:
    """The tokens of a sample, its advantage, the log probability of each token before the first step on it, and that in vLLM if
    it drew the sample."""

    tokens: list[int]
    advantage: float
    logps: list[float]
    sampler_logps: list[float] = field(default_factory=list)


Samples = dict[int, KeptSample]
"""Samples by their number in the epoch, so that a run can continue on other ranks and with other micro batches."""


class KeptSamples:
    """The micro batches of a rank's last samples, with the log probabilities that their tokens had in the first step on them."""

    def __init__(self) -> None:
        self._batches: list[dict[str, Any]] = []
        self._logps: list[torch.Tensor] = []

    def keep(self, batches: Sequence[dict[str, Any]], logps: Sequence[torch.Tensor] = ()) -> None:
        """Replaces the micro batches; the first step notes `logps` if they are not given."""
        self._batches, self._logps = list(batches), list(logps)

    def note(self, logps: torch.Tensor) -> None:
        """Takes the log probabilities of the next micro batch, of (rows, length), unless it has them."""
        if len(self._logps) < len(self._batches):
            self._logps.append(logps.detach())

    def again(self) -> list[dict[str, Any]]:
        """The micro batches as trl's trainer takes them after the first step."""
        pairs = zip(self._batches, self._logps, strict=True)
        return [batch | {"old_per_token_logps": logps} for batch, logps in pairs]

    def text(self) -> str:
        """The content of FILE: the samples of all ranks. A collective."""
        mine: Samples = {}
        for batch in reversed(self.again()):
            mine |= _samples_in(batch)
        return _as_text(_of_all_ranks(mine))


def restored(
    numbers: Sequence[int], samples: Samples, padding: int
) -> tuple[list[list[int]], list[float], torch.Tensor, torch.Tensor]:
    """Tokens, advantages and both log probabilities, of (rows, length), of the samples with these numbers. Of a repeated row, which
    does not count, there can be none."""
    kept = [samples.get(number, KeptSample([padding], 0.0, [0.0])) for number in numbers]
    logps = pad_sequence([torch.tensor(sample.logps) for sample in kept], batch_first=True)
    # Those of samples that the model itself drew are the same, at which the ratio is 1.
    sampler = pad_sequence([torch.tensor(sample.sampler_logps or sample.logps) for sample in kept], batch_first=True)
    return [sample.tokens for sample in kept], [sample.advantage for sample in kept], logps, sampler


def read(checkpoint: Path) -> Samples:
    """The samples in the folder of a checkpoint; empty if new ones are drawn after it."""
    file = checkpoint / FILE
    values = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return {int(number): KeptSample(*kept) for number, kept in values.items()}


def _samples_in(batch: Mapping[str, torch.Tensor]) -> Samples:
    """The samples of a micro batch with `old_per_token_logps`. Of a number that comes twice, the first sample."""
    samples: Samples = {}
    names = ["completion_ids", "completion_mask", "advantages", "old_per_token_logps", *{SAMPLER_LOGPS} & batch.keys()]
    for number, tokens, mask, advantage, *logps in zip(
        batch["sample"].tolist(), *(batch[name].cpu() for name in names), strict=True
    ):
        kept = mask.bool()
        both = (each[kept].tolist() for each in logps)
        samples.setdefault(number, KeptSample(tokens[kept].tolist(), float(advantage), *both))
    return samples


def _of_all_ranks(mine: Samples) -> Samples:
    """The samples of all ranks; of a number that comes twice, that of the first rank. A collective."""
    return {number: kept for rank in reversed(gathered(mine)) for number, kept in rank.items()}


def _as_text(samples: Samples) -> str:
    """The content of FILE. Numbers are written so that reading gives the same ones."""
    return json.dumps({number: astuple(kept) for number, kept in samples.items()})
