"""A byte-level BPE tokenizer as llama.cpp's "gpt2" vocabulary."""

from typing import Any

import gguf

from training.results.gguf.split_rules import rule_name
from training.results.gguf.tokens import Tokens, listed


def add_byte_level(writer: gguf.GGUFWriter, values: dict[str, Any], size: int) -> None:
    """Writes tokens, merges and split rule of the content of tokenizer.json, for `size` embeddings.

    Raises:
        UserError: llama.cpp would split text differently from this tokenizer.
    """
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(rule_name(values))
    tokens: Tokens = listed(values, size)
    writer.add_token_list(tokens.texts)
    writer.add_token_types(tokens.types)
    writer.add_token_merges([_merge(pair) for pair in values["model"]["merges"]])


def _merge(pair: list[str] | str) -> str:
    return pair if isinstance(pair, str) else " ".join(pair)
