"""Padded batches of each task, as its trainer takes them. Shapes are (rows, length)."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from training.batches.views import IGNORED, WEIGHTS, Tokens
from training.tokens.order import padded

Batch = dict[str, torch.Tensor]


class PairCollator:
    """Chosen answers, then rejected ones: input_ids, attention_mask and completion_mask of (2 x pairs, length)."""

    def __init__(self, pad_token_id: int) -> None:
        self._pad = Collator(pad_token_id)

    def __call__(self, pairs: list[dict[str, Tokens]]) -> Batch:
        batch = self._pad([pair["chosen"] for pair in pairs] + [pair["rejected"] for pair in pairs])
        batch["completion_mask"] = (batch.pop("labels") != IGNORED).long()
        return batch


class ScoreCollator(PairCollator):
    """The same without completion_mask, for a reward model, which scores whole sequences."""

    def __call__(self, pairs: list[dict[str, Tokens]]) -> Batch:
        batch = super().__call__(pairs)
        del batch["completion_mask"]
        return batch


class OddsCollator:
    """Chosen and rejected answers as separate tensors for ORPO's trainer: chosen_input_ids, rejected_labels and so on."""

    def __init__(self, pad_token_id: int) -> None:
        self._pad = Collator(pad_token_id)

    def __call__(self, pairs: list[dict[str, Tokens]]) -> Batch:
        return {
            f"{side}_{name}": tensor
            for side in ("chosen", "rejected")
            for name, tensor in self._pad([pair[side] for pair in pairs]).items()
        }


class UnpairedCollator:
    """Answers with their `label`. For KTO's KL term (KL_...) each prompt is also paired with the answer of the previous row.

    Rows also hold their tokens before truncation (`whole`), since each such pair is truncated to `max_length` itself.
    """

    def __init__(self, pad_token_id: int, max_length: int) -> None:
        self._pad, self._limit = Collator(pad_token_id), max_length

    def __call__(self, rows: list[dict[str, Any]]) -> Batch:
        batch = self._masked(rows)
        previous = [rows[-1], *rows[:-1]]
        mismatched = [_joined(row, other, self._limit) for row, other in zip(rows, previous, strict=True)]
        batch |= {f"KL_{name}": tensor for name, tensor in self._masked(mismatched).items()}
        return batch | {"label": torch.tensor([bool(row["label"]) for row in rows])}

    def _masked(self, rows: list[Tokens]) -> Batch:
        batch = self._pad(rows)
        batch["completion_mask"] = (batch.pop("labels") != IGNORED).long()
        return batch


def _joined(row: Tokens, other: Tokens, limit: int) -> Tokens:
    """Joins the prompt of one row and the whole answer of another, truncated to `limit` tokens."""
    prompt = row["input_ids"][: _answer_start(row)]
    answer = other["whole"][_answer_start(other) :]
    tokens = np.concatenate([prompt, answer])[:limit]
    labels = np.concatenate([np.full(len(prompt), IGNORED), answer])[:limit]
    return {"input_ids": tokens, "labels": labels}


def _answer_start(row: Tokens) -> int:
    return int(np.argmax(row["labels"] != IGNORED))


class TargetCollator:
    """Sources and targets: input_ids and attention_mask of (rows, source length), labels of (rows, target length)."""

    def __init__(self, pad_token_id: int) -> None:
        self._pad = Collator(pad_token_id)

    def __call__(self, rows: list[Tokens]) -> Batch:
        sources = [{"input_ids": row["input_ids"], "labels": row["input_ids"]} for row in rows]
        batch = self._pad(sources)
        batch["labels"] = torch.full((len(rows), padded(max(len(row["labels"]) for row in rows))), IGNORED)
        for index, row in enumerate(rows):
            batch["labels"][index, : len(row["labels"])] = torch.as_tensor(row["labels"])
        return batch


class ClassCollator:
    """Texts and their classes: input_ids and attention_mask of (rows, length), labels of (rows,)."""

    def __init__(self, pad_token_id: int) -> None:
        self._pad = Collator(pad_token_id)

    def __call__(self, rows: list[dict[str, Any]]) -> Batch:
        return self._pad(rows) | {"labels": torch.tensor([row["label"] for row in rows])}


Collate = Callable[[list[Any]], Batch]


class Collator:
    """Pads rows to the longest of a batch: input_ids, attention_mask, labels and, if rows have them, WEIGHTS of shape
    (rows, length)."""

    def __init__(self, pad_token_id: int) -> None:
        self._pad = pad_token_id

    def __call__(self, rows: list[Tokens]) -> dict[str, torch.Tensor]:
        shape = (len(rows), padded(max(len(row["input_ids"]) for row in rows)))
        batch = {
            "input_ids": torch.full(shape, self._pad),
            "attention_mask": torch.zeros(shape, dtype=torch.long),
            "labels": torch.full(shape, IGNORED),
        }
        for index, row in enumerate(rows):
            size = len(row["input_ids"])
            batch["input_ids"][index, :size] = torch.as_tensor(row["input_ids"])
            batch["attention_mask"][index, :size] = 1
            batch["labels"][index, :size] = torch.as_tensor(row["labels"])
        if WEIGHTS in rows[0]:
            batch[WEIGHTS] = torch.zeros(shape)
            for index, row in enumerate(rows):
                batch[WEIGHTS][index, : len(row[WEIGHTS])] = torch.as_tensor(row[WEIGHTS])
        return batch
