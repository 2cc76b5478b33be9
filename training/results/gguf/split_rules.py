"""llama.cpp's names (tokenizer.ggml.pre) of the rules by which byte-level tokenizers split text before they merge."""

import json
import re
from typing import Any

from tokenizers import Tokenizer

from training.results.gguf.architectures import refusal

_SMALL = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_MARKS = r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_FIRST = r"[^\r\n\p{L}\p{N}]?"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_REST_MARKS = r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_REST_SLASH = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"

THREE_DIGITS = rf"{_SMALL}|{_LETTERS}|\p{{N}}{{1,3}}{_REST}"
EACH_DIGIT = rf"{_SMALL}|{_LETTERS}|\p{{N}}{_REST}"
MARKS = rf"{_SMALL}|{_MARKS}|\p{{N}}{_REST_MARKS}"
O200K = rf"{_FIRST}{_UPPER}*{_LOWER}+{_SMALL}?|{_FIRST}{_UPPER}+{_LOWER}*{_SMALL}?|\p{{N}}{{1,3}}{_REST_SLASH}"
TEKKEN = rf"{_FIRST}{_UPPER}*{_LOWER}+|{_FIRST}{_UPPER}+{_LOWER}*|\p{{N}}{_REST_SLASH}"
WORDS = r"\p{N}|[\p{L}\p{M}]+|\s|[^\s\p{L}\p{M}\p{N}]"

# The name depends also on whether a whole word that is a token is used without its merges (ignore_merges).
_PATTERNS = {
    (THREE_DIGITS, True): "llama-bpe",
    (THREE_DIGITS, False): "smaug-bpe",
    (EACH_DIGIT, False): "qwen2",
    (MARKS, False): "qwen35",
    (O200K, False): "gpt-4o",
    (TEKKEN, True): "tekken",
}
_ASCII_WORD = re.compile(r"[A-Za-z]+")


def rule_name(values: dict[str, Any]) -> str:
    """llama.cpp's name of the split rule of a byte-level tokenizer, the content of tokenizer.json. Raises UserError if llama.cpp
    has no such rule."""
    steps = values.get("pre_tokenizer") or {}
    steps = steps.get("pretokenizers", [steps])
    kinds = [step.get("type") for step in steps]
    # llama.cpp skips NFC normalization, which rarely changes typed text; other normalizers change every text.
    plain = (values.get("normalizer") or {}).get("type", "NFC") == "NFC"
    if plain and kinds[-1] == "ByteLevel" and not any(step.get("add_prefix_space") for step in steps):
        name = _bytes_alone(steps) if steps[-1].get("use_regex", True) else _with_pattern(steps, values)
        if name:
            return name
    raise refusal("tokenizer", "splits text by a rule that llama.cpp does not have.")


def _bytes_alone(steps: list[dict[str, Any]]) -> str:
    """The name for GPT-2's own regular expression, after digits are split off or not."""
    if len(steps) == 1:
        return "gpt-2"
    digits = len(steps) == 2 and steps[0]["type"] == "Digits" and steps[0].get("individual_digits")
    return "smollm" if digits else ""


def _with_pattern(steps: list[dict[str, Any]], values: dict[str, Any]) -> str:
    if (
        len(steps) != 2
        or steps[0]["type"] != "Split"
        or steps[0].get("behavior") != "Isolated"
        or steps[0].get("invert")
    ):
        return ""
    pattern = steps[0]["pattern"].get("Regex", "")
    if pattern == WORDS:
        return "bloom" if _only_words_merge(values["model"]) else ""
    whole = bool(values["model"].get("ignore_merges"))
    if (pattern, not whole) in _PATTERNS and _merges_make_every_token(values):
        whole = whole if (pattern, whole) in _PATTERNS else not whole  # it makes no difference
    return _PATTERNS.get((pattern, whole), "")


def _merges_make_every_token(values: dict[str, Any]) -> bool:
    """True if the merges of each token's text lead to the token itself."""
    alone: dict[str, Any] = {"normalizer": None, "pre_tokenizer": None, "post_processor": None, "added_tokens": []}
    tokenizer = Tokenizer.from_str(json.dumps(values | alone | {"model": values["model"] | {"ignore_merges": False}}))
    added = {token["id"] for token in values.get("added_tokens", [])}
    texts = [text for text, number in values["model"]["vocab"].items() if number not in added]
    return all(len(found.ids) == 1 for found in tokenizer.encode_batch_fast(texts))


def _only_words_merge(model: dict[str, Any]) -> bool:
    """True if every merge makes a part of a word of ASCII letters.

    Bloom's rule splits only at spaces and punctuation: it never splits such words, and without other merges it does not
    matter that it splits less elsewhere.
    """
    return all(_ASCII_WORD.fullmatch("".join(pair)) for pair in merge_pairs(model))


def merge_pairs(model: dict[str, Any]) -> list[tuple[str, str]]:
    """The merges of a model of tokenizer.json, which older files write as "left right"."""
    pairs = (pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"])
    return [(left, right) for left, right in pairs]
