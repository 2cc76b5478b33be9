"""Padded batches of each task, as its trainer takes them. Shapes are (rows, length)."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from training.batches.sets import count_loss_tokens, item_sets
from training.batches.views import IGNORED, WEIGHTS, Tokens
from training.tokens.order import padded

Batch = dict[str, torch.Tensor]
Collate = Callable[[list[Any]], Batch]


class Collator:
    """Pads rows to the longest of a batch: input_ids, attention_mask, labels and, if rows have them, WEIGHTS of shape
    (rows, length)."""

    def __init__(self, pad_token_id: int) -> None:
        self._pad_token_id = pad_token_id

    def __call__(self, rows: list[Any]) -> Batch:
        return self.pad(rows)

    def pad(self, rows: list[Tokens]) -> Batch:
        """The padded batch of plain rows, from which the collators of other tasks make theirs."""
        shape = (len(rows), padded(max(len(row["input_ids"]) for row in rows)))
        batch = {
            "input_ids": torch.full(shape, self._pad_token_id),
            "attention_mask": torch.zeros(shape, dtype=torch.long),
            "labels": torch.full(shape, IGNORED),
        }
        if WEIGHTS in rows[0]:
            batch[WEIGHTS] = torch.zeros(shape)
        for index, row in enumerate(rows):
            size = len(row["input_ids"])
            batch["attention_mask"][index, :size] = 1
            for name in batch.keys() - {"attention_mask"}:
                batch[name][index, :size] = torch.as_tensor(row[name])
        return batch

    def completions(self, rows: list[Tokens]) -> Batch:
        """The padded batch with completion_mask, which is 1 at tokens with loss, in place of labels."""
        batch = self.pad(rows)
        batch["completion_mask"] = (batch.pop("labels") != IGNORED).long()
        return batch


class PairCollator(Collator):
    """Chosen answers, then rejected ones: input_ids, attention_mask and completion_mask of (2 x pairs, length)."""

    def __call__(self, rows: list[dict[str, Tokens]]) -> Batch:
        return self.completions([pair["chosen"] for pair in rows] + [pair["rejected"] for pair in rows])


class ScoreCollator(PairCollator):
    """The same without completion_mask, for a reward model, which scores whole sequences."""

    def __call__(self, rows: list[dict[str, Tokens]]) -> Batch:
        batch = super().__call__(rows)
        del batch["completion_mask"]
        return batch


class OddsCollator(Collator):
    """Chosen and rejected answers as separate tensors for ORPO's trainer: chosen_input_ids, rejected_labels and so on."""

    def __call__(self, rows: list[dict[str, Tokens]]) -> Batch:
        return {
            f"{side}_{name}": tensor
            for side in ("chosen", "rejected")
            for name, tensor in self.pad([pair[side] for pair in rows]).items()
        }


class UnpairedCollator(Collator):
    """Answers with their `label`. For KTO's KL term (KL_...) each prompt is also paired with the answer of the previous row.

    Rows also hold their tokens before truncation (`whole`), since each such pair is truncated to `max_length` itself.
    """

    def __init__(self, pad_token_id: int, max_length: int) -> None:
        super().__init__(pad_token_id)
        self._limit = max_length

    def __call__(self, rows: list[dict[str, Any]]) -> Batch:
        batch = self.completions(rows)
        previous = [rows[-1], *rows[:-1]]
        mismatched = [_joined(row, other, self._limit) for row, other in zip(rows, previous, strict=True)]
        batch |= {f"KL_{name}": tensor for name, tensor in self.completions(mismatched).items()}
        return batch | {"label": torch.tensor([bool(row["label"]) for row in rows])}


def _joined(row: Tokens, other: Tokens, limit: int) -> Tokens:
    """Joins the prompt of one row and the whole answer of another, truncated to `limit` tokens."""
    prompt = row["input_ids"][: _answer_start(row)]
    answer = other["whole"][_answer_start(other) :]
    tokens = np.concatenate([prompt, answer])[:limit]
    labels = np.concatenate([np.full(len(prompt), IGNORED), answer])[:limit]
    return {"input_ids": tokens, "labels": labels}


def _answer_start(row: Tokens) -> int:
    return int(np.argmax(row["labels"] != IGNORED))


class TargetCollator(Collator):
    """Sources and targets: input_ids and attention_mask of (rows, source length), labels of (rows, target length)."""

    def __call__(self, rows: list[Tokens]) -> Batch:
        batch = self.pad([{"input_ids": row["input_ids"], "labels": row["input_ids"]} for row in rows])
        batch["labels"] = torch.full((len(rows), padded(max(len(row["labels"]) for row in rows))), IGNORED)
        for index, row in enumerate(rows):
            batch["labels"][index, : len(row["labels"])] = torch.as_tensor(row["labels"])
        return batch | item_sets(rows, lambda row: count_loss_tokens(row["labels"]))


class PromptCollator(Collator):
    """Prompts: input_ids and attention_mask of (rows, length), and of shape (rows,) the numbers `sample` and `row`."""

    def __call__(self, rows: list[dict[str, Any]]) -> Batch:
        batch = self.pad(rows)
        del batch["labels"]
        return batch | {name: torch.tensor([row[name] for row in rows]) for name in ("sample", "row")}


class ClassCollator(Collator):
    """Texts and their classes: input_ids and attention_mask of (rows, length), labels of (rows,)."""

    def __call__(self, rows: list[dict[str, Any]]) -> Batch:
        labels = {"labels": torch.tensor([row["label"] for row in rows])}
        return self.pad(rows) | labels | item_sets(rows, lambda _: 1)
