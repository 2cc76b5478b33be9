"""Means over the samples of training steps and their tokens, for the plots of a run."""

from collections.abc import Collection, Sequence

import torch

from training.ranks.distributed import reduce_over_ranks
from training.trainer.evaluation import Means


def of_samples(answers: Sequence[list[int]], ends: Collection[int], device: torch.device) -> Means:
    """Returns the mean length of samples in tokens, and the share that does not end by one of the tokens `ends`."""
    lengths, cut = [len(answer) for answer in answers], [answer[-1] not in ends for answer in answers]
    values = {"completion_length": lengths, "cut_off": cut}
    count = torch.tensor(float(len(answers)), device=device)
    return {
        name: (torch.tensor(each, device=device, dtype=torch.float32).mean(), count) for name, each in values.items()
    }


class SampleMeans:
    """Means since the last report, over all ranks; and the seconds of a step on this one."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._sums: dict[str, torch.Tensor] = {}
        self._seconds: dict[str, float] = {}
        self._steps = 0

    def add(self, means: Means) -> None:
        """Adds the means of a batch, each with the number of its items; every rank adds the same names in the same order."""
        for name, (mean, count) in means.items():
            total = torch.where(count > 0, mean.detach() * count, 0.0)
            added = torch.stack([total, count.to(total)])
            self._sums[name] = self._sums[name] + added if name in self._sums else added

    def add_seconds(self, name: str, seconds: float, steps: int = 0) -> None:
        """Adds the seconds of a part of a step; `steps` is 1 for one part of each step."""
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds
        self._steps += steps

    def take(self) -> dict[str, float]:
        """Returns the means by name and begins anew. A collective."""
        sums = reduce_over_ranks(torch.stack(list(self._sums.values()))).tolist() if self._sums else []
        means = {name: total / count for name, (total, count) in zip(self._sums, sums, strict=True) if count}
        seconds = {name: value / max(self._steps, 1) for name, value in self._seconds.items()}
        self._clear()
        return means | seconds
