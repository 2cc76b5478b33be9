"""Computes tokens, batches and losses of preference tasks with trl's own trainers, for benchmarks/reference/command.py.

trl's losses of DPO, ORPO and rewards are means over the pairs of a batch (and over tokens, for ORPO's likelihood), so the global
batch is one batch here, and so are the held-out rows. KTO compares rows within a rank's micro batch and estimates its KL term over
the simultaneous micro batches of all ranks, so those form one batch, weighted by its rows.
"""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, disable_progress_bars
from transformers import AutoTokenizer

from benchmarks.reference.plain_loop import Step

disable_progress_bars()
logging.getLogger("trl").setLevel(logging.ERROR)
_QUIET = {"use_cpu": True, "report_to": [], "bf16": False, "gradient_checkpointing": False}


class PreferenceLearner:
    """Uses a trl trainer to prepare rows, make batches and compute their loss, but not to train.

    `micro` and `ranks` give the batches of held-out rows.
    """

    def __init__(
        self,
        task: str,
        model: Any,
        tokenizer: Path,
        rows: list[dict[str, Any]],
        held_out: list[dict[str, Any]],
        settings: dict[str, Any],
        micro: int,
        ranks: int,
    ) -> None:
        self._task, self._limit, self._micro, self._ranks = task, settings["max_length"], micro, ranks
        trainer, arguments = _classes(task)
        # KTO pairs rows within batches of this size.
        together = {"per_device_train_batch_size": max(2, len(rows))}
        self._trainer = trainer(
            model=model,
            args=arguments(**settings, **together, **_QUIET),
            processing_class=AutoTokenizer.from_pretrained(tokenizer),
            train_dataset=Dataset.from_list(rows[:1]),
        )
        self.model = self._trainer.model
        if "ref" in getattr(self.model, "peft_config", {}):
            self.model.delete_adapter("ref")  # with B = 0 at the start, the base model is the reference
        self._rows, self._held_out = self._prepared(rows), self._prepared(held_out)

    def tokens(self) -> list[list[int]]:
        """Returns the input tokens of each row; of a pair those with the chosen answer."""
        return [self._whole(row)[: self._limit] for row in self._rows]

    def parts(self, step: Step) -> Iterator[torch.Tensor]:
        count = sum(len(rank) for micro in step for rank in micro)
        for batch in self._together(step):
            named = [[self._rows[row] for row in rank] for rank in batch]
            yield self._loss(named) * (sum(map(len, batch)) / count)

    def after_step(self, number: int) -> None:
        pass

    def evaluate(self) -> float:
        places = range(len(self._held_out))
        batches = [list(places[start : start + self._micro]) for start in places[:: self._micro]]
        step = [batches[start : start + self._ranks] for start in range(0, len(batches), self._ranks)]
        losses = [
            sum(map(len, batch)) * self._loss([[self._held_out[row] for row in rank] for rank in batch]).item()
            for batch in self._together(step)
        ]
        return sum(losses) / len(places)

    def take(self, model: Any) -> None:
        """Takes over the model's weights: trl replaces the forward pass of its own."""
        self.model.load_state_dict(model.state_dict())
        self.model.eval()

    def _together(self, step: Step) -> list[list[list[int]]]:
        """Returns the batches to compute at once, each as a list of the ranks' parts."""
        return step if self._task == "kto" else [[rank for micro in step for rank in micro]]

    def _loss(self, parts: list[list[dict[str, Any]]]) -> torch.Tensor:
        if self._task == "kto":
            parts = [
                self._prepared(part) for part in parts if part
            ]  # prepared again, so that trl pairs rows within each part
        batch = self._trainer.data_collator([row for part in parts for row in part])
        loss: torch.Tensor = self._trainer.compute_loss(self.model, batch)
        return loss

    def _prepared(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Tokenizes rows with trl, which for KTO also pairs them."""
        trainer = self._trainer
        if self._task == "orpo":
            return [trainer.tokenize_row(row) for row in rows]
        return list(trainer._prepare_dataset(Dataset.from_list(rows), trainer.processing_class, trainer.args, "train"))

    def _whole(self, row: dict[str, Any]) -> list[int]:
        match self._task:
            case "orpo":
                return list(row["chosen_input_ids"])
            case "kto":
                return [*row["prompt_ids"], *row["completion_ids"]]
            case "dpo":
                return [*row["prompt_ids"], *row["chosen_ids"]]
            case _:
                return list(row["chosen_ids"])


def _classes(task: str) -> tuple[Any, Any]:
    """Returns trl's trainer class of a task, and the class of its arguments."""
    from trl.experimental import orpo
    from trl.trainer import dpo_config, dpo_trainer, kto_config, kto_trainer, reward_config, reward_trainer

    match task:
        case "dpo":
            return dpo_trainer.DPOTrainer, dpo_config.DPOConfig
        case "kto":
            return kto_trainer.KTOTrainer, kto_config.KTOConfig
        case "orpo":
            return orpo.ORPOTrainer, orpo.ORPOConfig
        case _:
            return reward_trainer.RewardTrainer, reward_config.RewardConfig
