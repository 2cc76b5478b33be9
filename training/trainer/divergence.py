"""Notices when training diverges: steps in a row whose loss or gradient is not finite."""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch

from training.config.choices import OnDivergence
from training.config.run_config import Changes, RunConfig
from training.ranks.distributed import local_part
from training.run_folder.paths import checkpoint_step

_LOWER_RATE = 0.1


class Divergence:
    """Counts these steps on one rank, one step late, so that training does not wait for the device.

    `seen` becomes True after `steps` of them. `scaled`: a scaler (fp16) skips steps whose gradient overflows, so only losses count.
    """

    def __init__(self, steps: int, device: torch.device, *, scaled: bool) -> None:
        self._steps, self._scaled, self._count = steps, scaled, 0
        self._step: torch.Tensor | None = None
        self._host = torch.zeros((), dtype=torch.bool, pin_memory=device.type == "cuda")
        self._copied = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._pending = False

    def add_loss(self, loss: torch.Tensor) -> None:
        """Takes the loss of a micro step, of shape ()."""
        broken = ~torch.isfinite(loss.detach()).all()
        self._step = broken if self._step is None else self._step | broken

    def add_norm(self, norm: torch.Tensor | float | None) -> None:
        """Takes the norm of a step's gradient, if it is known."""
        if norm is not None and not self._scaled and self._step is not None:
            own = local_part(norm) if isinstance(norm, torch.Tensor) else norm  # FSDP's; the ranks agree later
            self.add_loss(torch.as_tensor(own, device=self._step.device))

    def end_step(self) -> None:
        """Counts the step before, and begins to copy this one's verdict to the host."""
        self._take()
        if self._step is not None:
            self._host.copy_(self._step, non_blocking=True)
            if self._copied:
                self._copied.record()
            self._pending, self._step = True, None

    @property
    def seen(self) -> bool:
        return self._count >= self._steps

    def _take(self) -> None:
        if self._pending:
            if self._copied:
                self._copied.synchronize()
            self._count = self._count + 1 if self._host else 0
            self._pending = False


def best_first(ranks: Mapping[int, float], saved: Iterable[Path]) -> list[Path]:
    """The `saved` checkpoints by the `ranks` of the evaluations at their steps, lowest first; then the newest first."""
    steps = {path: checkpoint_step(path) or 0 for path in saved}
    return sorted(steps, key=lambda path: (ranks.get(steps[path], math.inf), -steps[path]))


def step_back(config: RunConfig) -> Changes:
    """The settings with which a diverged run resumes once from its last checkpoint; empty if it ends."""
    if config.on_divergence is OnDivergence.STOP:
        return {}
    return {"learning_rate": config.learning_rate * _LOWER_RATE, "on_divergence": OnDivergence.STOP.value}
