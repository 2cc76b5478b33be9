"""Makes tokens and labels of a file's rows with only the tokenizer and its chat template: the expected training data."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

IGNORED = -100


@dataclass(frozen=True)
class Row:
    """`ids` are the input tokens. `labels` are one per input token, the tokens of a seq2seq target, or one class.

    IGNORED marks tokens without loss. The loss of each token has the factor `weight`.
    """

    ids: list[int]
    labels: list[int]
    weight: float = 1.0


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def rows_of(task: str, file: Path, tokenizer: Any, limit: int) -> list[Row]:
    """Returns the rows with loss tokens, truncated to `limit` tokens."""
    read_rows = read(file)
    match task:
        case "pretraining":
            return [row for row_data in read_rows for row in _chunks(_ended(tokenizer, row_data["text"]), limit)]
        case "seq2seq":
            return [
                Row(_ended(tokenizer, row_data["prompt"])[:limit], _ended(tokenizer, row_data["completion"])[:limit])
                for row_data in read_rows
            ]
        case "classification":
            classes = classes_of(read_rows)
            return [
                Row(tokenizer(row_data["text"])["input_ids"][:limit], [classes.index(row_data["label"])])
                for row_data in read_rows
            ]
        case _:
            rows = [
                _chat(row_data, tokenizer) if "messages" in row_data else _answer(row_data, tokenizer)
                for row_data in read_rows
            ]
            weights = [row_data.get("weight", 1.0) for row_data in read_rows]
            cut = [Row(row.ids[:limit], row.labels[:limit], weight) for row, weight in zip(rows, weights, strict=True)]
            return [row for row in cut if row.weight and any(label != IGNORED for label in row.labels[1:])]


def classes_of(rows: Sequence[dict[str, Any]]) -> list[str]:
    return sorted({row["label"] for row in rows})


def _ended(tokenizer: Any, text: str) -> list[int]:
    """Tokenizes text without a template, which ends with the end token."""
    ids: list[int] = tokenizer(text)["input_ids"]
    return ids if ids[-1] == tokenizer.eos_token_id else [*ids, tokenizer.eos_token_id]


def _answer(row_data: dict[str, Any], tokenizer: Any) -> Row:
    """The answer and its end token carry loss. (With a byte tokenizer no token spans prompt and answer.)"""
    asked = len(tokenizer(row_data["prompt"])["input_ids"])
    ids = _ended(tokenizer, row_data["prompt"] + row_data["completion"])
    return Row(ids, [IGNORED] * asked + ids[asked:])


def _chat(row_data: dict[str, Any], tokenizer: Any) -> Row:
    """Every answer and its end token carry loss; the template's own text and other turns do not."""
    text = tokenizer.apply_chat_template(row_data["messages"], tokenize=False)
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    learned: set[int] = set()
    end = 0
    for message in row_data["messages"]:  # they follow each other in the text, each with its end token
        turn = message["content"] + tokenizer.eos_token
        start = text.index(turn, end)
        end = start + len(turn)
        learned |= set(range(start, end)) if message["role"] == "assistant" else set()
    labels = [
        token if first in learned else IGNORED
        for token, (first, _) in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
    ]
    return Row(encoded["input_ids"], labels)


def _chunks(ids: list[int], limit: int) -> list[Row]:
    """Splits a text into chunks of `limit` tokens, all with loss; a chunk of one token has nothing to predict."""
    pieces = [ids[start : start + limit] for start in range(0, len(ids), limit)]
    return [Row(piece, piece) for piece in pieces if len(piece) > 1]
