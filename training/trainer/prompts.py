"""Batches of prompts."""

from collections.abc import Iterator
from typing import Any

Batch = dict[str, Any]

SAMPLER_LOGPS = "sampler_logps"
"""In a batch: the log-probability of each token of its samples in the program that drew them, of (rows, length)."""


def prompts(batch: Batch) -> Iterator[list[int]]:
    """The tokens of each prompt of a batch."""
    for tokens, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True):
        yield tokens[mask.bool()].tolist()
