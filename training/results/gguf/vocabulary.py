"""Writes a tokenizer to a GGUF file: its vocabulary, special tokens and chat template."""

import json
import re
from pathlib import Path
from typing import Any

import gguf
from transformers import AutoTokenizer, GenerationConfig, PreTrainedTokenizerBase

from training.results.gguf.refusal import refusal
from training.results.gguf.sentencepiece import add_sentencepiece, is_sentencepiece
from training.results.gguf.split_rules import rule_name
from training.results.gguf.tokens import listed

# transformers marks an answer in a template by these; other programs do not know them.
_GENERATION = re.compile(r"\{%(-?)\s*(end)?generation\s*(-?)%\}")
_SPECIAL = ("bos", "eos", "unk", "pad", "sep")


def add_vocabulary(writer: gguf.GGUFWriter, folder: Path, size: int) -> None:
    """Writes the tokenizer in `folder`, for `size` embeddings.

    Raises:
        UserError: llama.cpp would split text differently from this tokenizer.
    """
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    values = json.loads(tokenizer.backend_tokenizer.to_str())
    if values["model"]["type"] != "BPE":
        raise refusal("tokenizer", f"is of the kind {values['model']['type']}; supported is BPE.")
    if is_sentencepiece(values):
        add_sentencepiece(writer, values, size, chats=bool(tokenizer.chat_template))
    else:
        _add_byte_level(writer, values, size)
    _add_special_tokens(writer, tokenizer, folder)
    if tokenizer.chat_template:
        writer.add_chat_template(portable_template(_template(tokenizer)))


def _add_byte_level(writer: gguf.GGUFWriter, values: dict[str, Any], size: int) -> None:
    """Writes byte-level BPE, which GGUF calls gpt2."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(rule_name(values))
    tokens = listed(values, size)
    writer.add_token_list(tokens.texts)
    writer.add_token_types(tokens.types)
    merges = values["model"]["merges"]
    writer.add_token_merges([pair if isinstance(pair, str) else " ".join(pair) for pair in merges])


def portable_template(template: str) -> str:
    """The chat template without the tag `generation`, which only transformers knows; it renders the same text."""

    def condition(found: re.Match[str]) -> str:
        before, end, after = found.groups()
        return f"{{%{before} {'endif' if end else 'if true'} {after}%}}"

    return _GENERATION.sub(condition, template)


def _template(tokenizer: PreTrainedTokenizerBase) -> str:
    """The template that transformers uses without tools."""
    found = tokenizer.chat_template
    return str(found.get("default") or next(iter(found.values()))) if isinstance(found, dict) else str(found)


def _add_special_tokens(writer: gguf.GGUFWriter, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    for name in _SPECIAL:
        if (number := getattr(tokenizer, f"{name}_token_id", None)) is not None:
            getattr(writer, f"add_{name}_token_id")(number)
    plain, full = (tokenizer("a", add_special_tokens=special)["input_ids"] for special in (False, True))
    begins = len(full) > len(plain) and full[0] == tokenizer.bos_token_id
    writer.add_add_bos_token(_chat_begins(tokenizer) if tokenizer.chat_template else begins)
    writer.add_add_eos_token(len(full) > len(plain) and full[-1] == tokenizer.eos_token_id)
    ends = [number for number in _ends(folder) if number != tokenizer.eos_token_id]
    for number, add in zip(ends, (writer.add_eot_token_id, writer.add_eom_token_id), strict=False):
        add(number)


def _chat_begins(tokenizer: PreTrainedTokenizerBase) -> bool:
    """True if the chat template starts with the token that begins a text: servers add it, and remove it from the template's."""
    text = tokenizer.apply_chat_template([{"role": "user", "content": "a"}], tokenize=False, add_generation_prompt=True)
    return bool(tokenizer.bos_token) and str(text).startswith(tokenizer.bos_token)


def _ends(folder: Path) -> list[int]:
    """The tokens that end an answer, by generation_config.json."""
    try:
        found = GenerationConfig.from_pretrained(str(folder)).eos_token_id
    except OSError:
        return []
    return found if isinstance(found, list) else [] if found is None else [found]
