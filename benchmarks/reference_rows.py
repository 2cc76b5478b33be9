"""Rows of a file as tokens and labels, by the tokenizer and its chat template alone: what a run should have trained on."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

IGNORED = -100


@dataclass(frozen=True)
class Row:
    """`ids` is what the model reads. `labels` has an entry for every one of them, for every token of a seq2seq target, or
    one class; IGNORED carries no loss."""

    ids: list[int]
    labels: list[int]


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def rows_of(task: str, file: Path, tokenizer: Any, limit: int) -> list[Row]:
    """The rows that train, cut to `limit` tokens: those in which a token can carry loss."""
    read_rows = read(file)
    match task:
        case "pretraining":
            return [row for given in read_rows for row in _chunks(_ended(tokenizer, given["text"]), limit)]
        case "seq2seq":
            return [
                Row(_ended(tokenizer, given["prompt"])[:limit], _ended(tokenizer, given["completion"])[:limit])
                for given in read_rows
            ]
        case "classification":
            classes = classes_of(read_rows)
            return [
                Row(_ended(tokenizer, given["text"])[:limit], [classes.index(given["label"])]) for given in read_rows
            ]
        case _:
            rows = [
                _chat(given, tokenizer) if "messages" in given else _answer(given, tokenizer) for given in read_rows
            ]
            cut = [Row(row.ids[:limit], row.labels[:limit]) for row in rows]
            return [row for row in cut if any(label != IGNORED for label in row.labels[1:])]


def classes_of(rows: Sequence[dict[str, Any]]) -> list[str]:
    return sorted({row["label"] for row in rows})


def _ended(tokenizer: Any, text: str) -> list[int]:
    """Text outside of a template ends with the end token."""
    ids: list[int] = tokenizer(text)["input_ids"]
    return ids if ids[-1] == tokenizer.eos_token_id else [*ids, tokenizer.eos_token_id]


def _answer(given: dict[str, Any], tokenizer: Any) -> Row:
    """The answer and its end token carry loss. (The tokenizer is of bytes, so that no token spans prompt and answer.)"""
    asked = len(tokenizer(given["prompt"])["input_ids"])
    ids = _ended(tokenizer, given["prompt"] + given["completion"])
    return Row(ids, [IGNORED] * asked + ids[asked:])


def _chat(given: dict[str, Any], tokenizer: Any) -> Row:
    """Every answer with its end token carries loss; what the template writes around it, and the other turns, do not."""
    text = tokenizer.apply_chat_template(given["messages"], tokenize=False)
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    learned: set[int] = set()
    end = 0
    for message in given["messages"]:  # each stands in the text with its end token behind it, one after another
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
    """A text in pieces of `limit` tokens, all of which carry loss; one token alone has nothing to predict."""
    pieces = [ids[start : start + limit] for start in range(0, len(ids), limit)]
    return [Row(piece, piece) for piece in pieces if len(piece) > 1]
