"""Tokens and rows per second of training, and the names under which Lathe records what trainers log."""

import time
from collections.abc import Mapping

import torch

from training.ranks.distributed import reduce_over_ranks
from training.run_folder.events import REWARD_OF

# Evaluations prefix both names with eval_.
_METRICS = {
    "loss": "loss",
    "accuracy": "accuracy",
    "margin": "margin",
    "rewards/accuracies": "accuracy",
    "rewards/margins": "margin",
    "rewards/chosen": "reward_chosen",
    "rewards/rejected": "reward_rejected",
    "kl": "kl",
    "reward": "reward",
    "reward_std": "reward_std",
    "all_equal_groups": "all_equal_groups",
    "completion_length": "completion_length",
    "cut_off": "cut_off",
    "unscored": "unscored",
    "entropy": "entropy",
    "clip_ratio/region_mean": "clipped",
    "cispo_clip_ratio": "clipped",
    "generate_seconds": "generate_seconds",
    "score_seconds": "score_seconds",
    "teacher_logprob": "teacher_logprob",
    "teacher_seconds": "teacher_seconds",
    "sampler_difference": "sampler_difference",
    "sampler_ratio": "sampler_ratio",
}
_LOGGED = (
    {"learning_rate": "learning_rate", "grad_norm": "grad_norm", "eval_perplexity": "eval_perplexity"}
    | _METRICS
    | {f"eval_{name}": f"eval_{metric}" for name, metric in _METRICS.items()}
)


class Throughput:
    """Measures tokens and rows per second of training over all ranks, without evaluation and saving, and counts all tokens.

    `before` are the tokens of the attempts before this one, `seconds` those spent in training steps that were logged.
    """

    def __init__(self, device: torch.device) -> None:
        self.before = 0
        self._counts = torch.zeros(2, dtype=torch.float64, device="cpu" if device.type == "cpu" else device)
        self._total = torch.zeros(2, dtype=torch.float64)
        self.seconds = 0.0
        self._since: float | None = None
        self._interval = 0.0

    def add(self, tokens: torch.Tensor, rows: float | torch.Tensor) -> None:
        """Counts a micro batch: its tokens without padding (of shape (), on any device) and its rows."""
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
        self.seconds += seconds
        return _rates(counts, seconds) | {"tokens": self.before + float(self._total[0])}

    def tokens(self) -> int:
        """Returns the tokens of the run so far. A collective if there are several ranks."""
        return self.before + int(self._total[0] + self._counts_of_all_ranks()[0])

    def overall(self) -> dict[str, float | None]:
        """Returns the same rates over the whole attempt."""
        return _rates(self._total, self.seconds)

    def _counts_of_all_ranks(self) -> torch.Tensor:
        return reduce_over_ranks(self._counts.clone()).cpu()


def _rates(counts: torch.Tensor, seconds: float) -> dict[str, float | None]:
    tokens, rows = counts.tolist()
    if seconds <= 0:
        return {"tokens_per_second": None, "samples_per_second": None}
    return {"tokens_per_second": tokens / seconds, "samples_per_second": rows / seconds}


def recorded(logs: Mapping[str, float]) -> dict[str, float | None]:
    """Returns the metrics in a trainer's log under the names in which Lathe records them."""
    rewards = {name: name for name in logs if name.startswith(REWARD_OF)}
    named = {metric: logs[name] for name, metric in (_LOGGED | rewards).items() if name in logs}
    return {metric: None if value is None else float(value) for metric, value in named.items()}
