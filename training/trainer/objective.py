"""What a task minimizes: the items of its batches, the terms of its loss, and what it measures.

A trainer has one objective. It loads the batches, weighs the terms, takes the steps, evaluates, saves and resumes; the objective
knows none of that.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from training.batches.collators import Collate
from training.config.run_config import RunConfig
from training.reports.report import Report
from training.trainer.evaluation import Means
from training.trainer.loss_terms import BATCHES, LossTerms


class Objective:
    """The interface between a trainer and its task. A subclass has `items` and `loss`; all else has a default."""

    trainer: Any  # a ReportingTrainer, which imports this file

    def __init__(self, config: RunConfig, model: Any, *, tokenizer: Any = None, report: Report | None = None) -> None:
        """Prepares the model before it is wrapped. Without a report it is that of a simulated step, which has no trainer."""
        self.config, self.model, self.tokenizer, self.report = config, model, tokenizer, report

    @classmethod
    def collator(cls, config: RunConfig, pad_token_id: int) -> Collate:
        """Returns what makes a batch of rows."""
        raise NotImplementedError

    def items(self, batch: dict[str, Any]) -> dict[str, torch.Tensor]:
        """Returns the numbers of items of a micro batch by kind, of shape (). A batch without items of the first kind does not
        count; BATCHES need not be named."""
        raise NotImplementedError

    def loss(self, model: torch.nn.Module, batch: dict[str, Any]) -> LossTerms:
        """Returns the loss of a micro batch with a gradient."""
        raise NotImplementedError

    def held_out(self, model: torch.nn.Module, batch: dict[str, Any]) -> Means:
        """Returns the means of a batch to average in an evaluation. Parts of a loss are named loss and loss_..., and added."""
        counts = self.items(batch)
        terms = [one for one in self.loss(model, batch).terms if one.over != BATCHES]
        names = ("loss", *(f"loss_of_{one.over}" for one in terms[1:]))
        return {name: (one.value, counts[one.over]) for name, one in zip(names, terms, strict=True)}

    def size(self, batch: dict[str, Any]) -> tuple[torch.Tensor, int | torch.Tensor]:
        """Returns the numbers of tokens (without padding) and rows of a batch."""
        return batch["attention_mask"].sum(), len(batch["attention_mask"])

    def begin(self, trainer: Any) -> None:
        """Called at the end of the trainer's constructor."""
        self.trainer = trainer

    def placed(self) -> dict[str, str]:
        """Called when the model is wrapped and placed; returns what the run's summary says of the strategy."""
        return {}

    def before_first_step(self) -> None:
        """Called once per attempt that trains from the first step, after the probe. A collective."""

    def running(self) -> AbstractContextManager[None]:
        """A context in which the run trains."""
        return nullcontext()

    def evaluating(self) -> AbstractContextManager[None]:
        """A context in which the run evaluates."""
        return nullcontext()

    def batches(self, batches: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns the micro batches of the next step, made of those of its rows."""
        return batches

    def largest(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Returns the largest micro batch that a step can make of one of rows, for the probe."""
        return batch

    def forget(self) -> None:
        """Forgets what was measured: that was the probe."""

    def measured(self, logs: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """Returns what was measured besides `logs`, in the steps or the evaluation that they report. A collective."""
        return {}

    def of_means(self, means: Mapping[str, float]) -> dict[str, float]:  # noqa: ARG002
        """Returns what follows from the means of an evaluation."""
        return {}

    def marks(self) -> dict[str, Any]:
        """What the run's summary says besides its numbers, because they may not be what they seem."""
        return {}

    def further_files(self) -> dict[str, str]:
        """The text of further files of a checkpoint, by name. A collective."""
        return {}
