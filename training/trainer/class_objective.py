"""The loss of a classifier."""

from typing import Any

import torch
from torch.nn.functional import cross_entropy

from training.batches.collators import ClassCollator, Collate
from training.config.run_config import RunConfig
from training.trainer.evaluation import Means
from training.trainer.loss_terms import ROWS, ItemLosses, LossTerm, LossTerms
from training.trainer.objective import Objective


class ClassObjective(Objective):
    """Trains a classifier; evaluates its loss and accuracy, both means over rows."""

    @classmethod
    def collator(cls, config: RunConfig, pad_token_id: int) -> Collate:  # noqa: ARG003
        """Pads texts, with their classes."""
        return ClassCollator(pad_token_id)

    def items(self, batch: dict[str, Any]) -> dict[str, torch.Tensor]:
        """Returns the number of rows."""
        return {ROWS: torch.tensor(len(batch["labels"]))}

    def loss(self, model: torch.nn.Module, batch: dict[str, Any]) -> LossTerms:
        """Returns the model's own loss."""
        outputs = model(**batch)

        def of_items() -> ItemLosses:
            logits = outputs["logits"].detach().float()
            return ItemLosses(cross_entropy(logits, batch["labels"], reduction="none"))

        return LossTerms((LossTerm(outputs["loss"], ROWS),), of_items)

    def held_out(self, model: torch.nn.Module, batch: dict[str, Any]) -> Means:
        """Returns the loss and the accuracy."""
        outputs, rows = model(**batch), self.items(batch)[ROWS]
        correct = outputs["logits"].argmax(-1) == batch["labels"].to(outputs["logits"].device)
        return {"loss": (outputs["loss"], rows), "accuracy": (correct.float().mean(), rows)}
