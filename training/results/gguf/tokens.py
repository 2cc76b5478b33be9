"""The texts and types of a vocabulary, one of each for every embedding."""

from dataclasses import dataclass
from typing import Any

import gguf

from training.results.gguf.refusal import refusal


@dataclass(frozen=True)
class Tokens:
    """`added` are the ids of tokens that are found in the text before it is split."""

    texts: list[str]
    types: list[int]
    added: frozenset[int]


def listed(values: dict[str, Any], size: int) -> Tokens:
    """The tokens of the content of tokenizer.json; embeddings without a token get an unused one.

    Raises:
        UserError: the tokenizer has more tokens than the model has embeddings.
    """
    texts = [f"[PAD{number}]" for number in range(size)]
    types = [int(gguf.TokenType.UNUSED)] * size
    added = values.get("added_tokens", [])
    numbers = [*values["model"]["vocab"].values(), *(token["id"] for token in added)]
    if max(numbers) >= size:
        raise refusal(
            "tokenizer",
            f"has {max(numbers) + 1:,} tokens for {size:,} embeddings.",
            "Use the tokenizer it was trained with.",
        )
    for text, number in values["model"]["vocab"].items():
        texts[number], types[number] = text, gguf.TokenType.NORMAL
    for token in added:
        kind = gguf.TokenType.CONTROL if token["special"] else gguf.TokenType.USER_DEFINED
        texts[token["id"]], types[token["id"]] = token["content"], kind
    return Tokens(texts, types, frozenset(token["id"] for token in added))
