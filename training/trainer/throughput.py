"""Tokens and rows per second of training."""

import time

import torch
import torch.distributed as dist


class Throughput:
    """Measures tokens and rows per second of training over all ranks, without evaluation and saving, and counts all tokens.

    `before` are the tokens of the attempts before this one.
    """

    def __init__(self, device: torch.device) -> None:
        self.before = 0
        self._counts = torch.zeros(2, dtype=torch.float64, device="cpu" if device.type == "cpu" else device)
        self._total = torch.zeros(2, dtype=torch.float64)
        self._seconds = 0.0
        self._since: float | None = None
        self._interval = 0.0

    def add(self, tokens: torch.Tensor, rows: int | torch.Tensor) -> None:
        """Counts a micro batch: its tokens without padding (of shape (), on the device) and its rows."""
        if self._since is None:
            self._since = time.perf_counter()
        self._counts[0] += tokens
        self._counts[1] += rows

    def pause(self) -> None:
        if self._since is not None:
            self._interval += time.perf_counter() - self._since
            self._since = None

    def resume(self) -> None:
        self._since = time.perf_counter()

    def since_last(self) -> dict[str, float | None]:
        """Returns tokens_per_second and samples_per_second since the last call, and `tokens` of the run so far.

        A collective if there are several ranks.
        """
        counts = self._counts_of_all_ranks()
        self._counts.zero_()
        self.pause()
        seconds, self._interval = self._interval, 0.0
        self.resume()
        self._total += counts
        self._seconds += seconds
        return _rates(counts, seconds) | {"tokens": self.before + float(self._total[0])}

    def tokens(self) -> int:
        """Returns the tokens of the run so far. A collective if there are several ranks."""
        return self.before + int(self._total[0] + self._counts_of_all_ranks()[0])

    def overall(self) -> dict[str, float | None]:
        """Returns the same rates over the whole attempt."""
        return _rates(self._total, self._seconds)

    def _counts_of_all_ranks(self) -> torch.Tensor:
        counts = self._counts.clone()
        if dist.is_initialized() and dist.get_world_size() > 1:
            dist.all_reduce(counts)
        return counts.cpu()

    @property
    def seconds(self) -> float:
        """Seconds spent in training steps that were logged."""
        return self._seconds


def _rates(counts: torch.Tensor, seconds: float) -> dict[str, float | None]:
    tokens, rows = counts.tolist()
    known = seconds > 0
    return {
        "tokens_per_second": tokens / seconds if known else None,
        "samples_per_second": rows / seconds if known else None,
    }
