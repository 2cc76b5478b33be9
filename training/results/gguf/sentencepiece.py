"""A BPE tokenizer with byte fallback, as SentencePiece trains it, as llama.cpp's "llama" vocabulary.

llama.cpp merges the pair whose token has the highest score. tokenizer.json has merges in place of scores; the score of a
token is minus the place of its first merge.
"""

import re
from typing import Any

import gguf

from training.results.gguf.refusal import refusal
from training.results.gguf.tokens import Tokens, listed

SPACE = "▁"
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
_ADDED_SCORE = -1000.0


def is_sentencepiece(values: dict[str, Any]) -> bool:
    """True if unknown characters become bytes, as in SentencePiece."""
    return bool(values["model"].get("byte_fallback"))


def add_sentencepiece(writer: gguf.GGUFWriter, values: dict[str, Any], size: int, *, chats: bool) -> None:
    """Writes tokens, scores and the handling of the first space, for `size` embeddings.

    Raises:
        UserError: llama.cpp would split text differently from this tokenizer.
    """
    tokens = listed(values, size)
    types, scores = list(tokens.types), _scores(values["model"], tokens)
    for number, text in enumerate(tokens.texts):
        if types[number] == gguf.TokenType.NORMAL and _BYTE.fullmatch(text):
            types[number] = gguf.TokenType.BYTE
    if sum(kind == gguf.TokenType.BYTE for kind in types) != 256:
        raise refusal("tokenizer", "has byte fallback but not a token for every byte.")
    unknown = values["model"]["vocab"].get(values["model"].get("unk_token"))
    if unknown is not None:
        types[unknown] = gguf.TokenType.UNKNOWN
    texts = [
        text.replace(SPACE, " ") if kind == gguf.TokenType.USER_DEFINED else text
        for text, kind in zip(tokens.texts, types, strict=True)
    ]
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(texts)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    writer.add_add_space_prefix(_prefix(values, chats=chats))


def _scores(model: dict[str, Any], tokens: Tokens) -> list[float]:
    """The score of every token; characters, which nothing is merged to, have the lowest of the merged ones.

    Raises:
        UserError: a score for each token cannot replace the merges.
    """
    vocab: dict[str, int] = model["vocab"]
    pairs = [pair if isinstance(pair, list) else pair.split(" ") for pair in model["merges"]]
    places: dict[str, int] = {}
    last = ""
    for left, right in pairs:
        made = left + right
        if made != last and made in places:
            raise refusal(
                "tokenizer", f"merges to {made!r} at two priorities, which llama.cpp's scores cannot express."
            )
        last = made
        places.setdefault(made, len(places))
    _check_complete(vocab, {(left, right) for left, right in pairs}, tokens)
    scores = [-float(len(places))] * len(tokens.texts)
    for text, place in places.items():
        scores[vocab[text]] = -float(place)
    for number in tokens.added:
        scores[number] = _ADDED_SCORE
    return scores


def _check_complete(vocab: dict[str, int], pairs: set[tuple[str, str]], tokens: Tokens) -> None:
    """llama.cpp merges any two tokens whose texts together are a token."""
    usable = {text for text, number in vocab.items() if number not in tokens.added and not _BYTE.fullmatch(text)}
    for text in usable:
        for place in range(1, len(text)):
            left, right = text[:place], text[place:]
            if left in usable and right in usable and (left, right) not in pairs:
                raise refusal("tokenizer", f"does not merge {left!r} and {right!r} to {text!r}, as llama.cpp would.")


def _prefix(values: dict[str, Any], *, chats: bool) -> bool:
    """True if llama.cpp shall put a space before a text and after each special token.

    A tokenizer that does so only before the text never does in a chat, which starts with a special token; it is written
    for chats if it has a chat template.

    Raises:
        UserError: the tokenizer changes text in another way.
    """
    steps = [*_steps(values.get("normalizer"), "normalizers"), *_steps(values.get("pre_tokenizer"), "pretokenizers")]
    prefix = False
    for step in steps:
        kind = step["type"]
        replaces = kind == "Replace" and step["pattern"] == {"String": " "} and step["content"] == SPACE
        splits_nothing = kind == "Split" and step["pattern"] == {"String": " "}  # all spaces are replaced before
        if kind == "Prepend" and step["prepend"] == SPACE:
            prefix = True
        elif kind == "Metaspace" and step["replacement"] == SPACE and step.get("split") is False:
            scheme = step.get("prepend_scheme", "always")
            prefix = scheme == "always" or (scheme == "first" and not chats)
        elif not replaces and not splits_nothing:
            raise refusal("tokenizer", f"changes text by a step ({kind}) that llama.cpp does not have.")
    if not any(step["type"] in ("Replace", "Metaspace") for step in steps):
        raise refusal("tokenizer", f"does not write spaces as {SPACE}, as llama.cpp does.")
    return prefix


def _steps(step: dict[str, Any] | None, key: str) -> list[dict[str, Any]]:
    return [] if step is None else step.get(key, [step])
