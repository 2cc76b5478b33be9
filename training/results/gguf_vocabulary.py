"""Writes a tokenizer to a GGUF file. llama.cpp has a fixed set of rules to split text; other tokenizers are refused."""

import json
from pathlib import Path
from typing import Any

import gguf

from training.errors import UserError

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SPLITS = {
    _CONTRACTIONS + r"\p{N}" + _REST: "qwen2",
    _CONTRACTIONS + r"\p{N}{1,3}" + _REST: "llama-bpe",
}


def add_vocabulary(writer: gguf.GGUFWriter, folder: Path, size: int) -> None:
    """Writes tokens, merges, special tokens and chat template of the tokenizer in `folder`, for `size` embeddings.

    Raises:
        UserError: llama.cpp would split text differently from this tokenizer.
    """
    values = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    writer.add_tokenizer_model("gpt2")  # GGUF's name of byte-level BPE
    writer.add_tokenizer_pre(_split_rule(values))
    texts, types = _tokens(values, size)
    writer.add_token_list(texts)
    writer.add_token_types(types)
    gguf.SpecialVocab(folder, load_merges=True, n_vocab=size).add_to_gguf(writer, quiet=True)


def _split_rule(values: dict[str, Any]) -> str:
    """Returns llama.cpp's name of the tokenizer's split rule."""
    steps = values.get("pre_tokenizer") or {}
    steps = steps.get("pretokenizers", [steps])
    kinds = [step.get("type") for step in steps]
    # llama.cpp skips NFC normalization, which rarely changes typed text; other normalizers change every text.
    plain = values["model"]["type"] == "BPE" and (values.get("normalizer") or {}).get("type", "NFC") == "NFC"
    if plain and not any(step.get("add_prefix_space") for step in steps):
        if kinds == ["ByteLevel"] and steps[0].get("use_regex", True):
            return "gpt-2"
        name = _SPLITS.get(steps[0]["pattern"].get("Regex", "")) if kinds == ["Split", "ByteLevel"] else None
        if name:
            return name
    message = "splits text by a rule that llama.cpp does not have."
    raise UserError("gguf", "tokenizer", message, "Supported are the byte-level tokenizers of GPT-2, Llama 3 and Qwen.")


def _tokens(values: dict[str, Any], size: int) -> tuple[list[str], list[int]]:
    """Returns every embedding's text and type; embeddings without a token get an unused one."""
    texts = [f"[PAD{number}]" for number in range(size)]
    types = [int(gguf.TokenType.UNUSED)] * size
    for text, number in values["model"]["vocab"].items():
        texts[number], types[number] = text, gguf.TokenType.NORMAL
    for token in values.get("added_tokens", []):
        kind = gguf.TokenType.CONTROL if token["special"] else gguf.TokenType.USER_DEFINED
        texts[token["id"]], types[token["id"]] = token["content"], kind
    return texts, types
