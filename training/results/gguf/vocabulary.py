"""Writes a tokenizer to a GGUF file: its vocabulary, special tokens and chat template.

The vocabularies of the `gguf` library serve none of the families of tests/gguf_families.py: BpeVocab gives special tokens of the
vocabulary the type of text, LlamaHfVocab gives all tokens one score, SentencePieceVocab needs a file that transformers no longer
writes, and none fills up to the number of embeddings. SpecialVocab takes tokens that only config.json names, and adds the first
token where the chat template already does.

GGUF's "llama" vocabulary merges the pair whose token has the highest score. tokenizer.json has merges in place of scores; the
score of a token is minus the place of its first merge.
"""

import json
import re
from pathlib import Path
from typing import Any

import gguf
from transformers import AutoTokenizer, GenerationConfig, PreTrainedTokenizerBase

from training.results.gguf.architectures import refusal
from training.results.gguf.split_rules import merge_pairs, rule_name
from training.trainer.answering import configured_ends

# transformers marks an answer in a template by these; other programs do not know them.
_GENERATION = re.compile(r"\{%(-?)\s*(end)?generation\s*(-?)%\}")
_SPECIAL = ("bos", "eos", "unk", "pad", "sep")
_SPACE = "▁"
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
_ADDED = (gguf.TokenType.CONTROL, gguf.TokenType.USER_DEFINED)
_ADDED_SCORE = -1000.0


def add_vocabulary(writer: gguf.GGUFWriter, folder: Path, size: int) -> None:
    """Writes the tokenizer in `folder`, for `size` embeddings. Raises UserError if llama.cpp would split text differently from
    this tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    values = json.loads(tokenizer.backend_tokenizer.to_str())
    if values["model"]["type"] != "BPE":
        raise refusal("tokenizer", f"is of the kind {values['model']['type']}; supported is BPE.")
    texts, types = _tokens(values, size)
    if values["model"].get("byte_fallback"):  # as SentencePiece trains it
        _add_sentencepiece(writer, values, texts, types, chats=bool(tokenizer.chat_template))
    else:  # byte-level BPE, which GGUF calls gpt2
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(rule_name(values))
        writer.add_token_list(texts)
        writer.add_token_types(types)
        writer.add_token_merges([" ".join(pair) for pair in merge_pairs(values["model"])])
    _add_special_tokens(writer, tokenizer, folder)
    if tokenizer.chat_template:
        writer.add_chat_template(portable_template(_template(tokenizer)))


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
        return configured_ends(GenerationConfig.from_pretrained(str(folder)))
    except OSError:
        return []


def _tokens(values: dict[str, Any], size: int) -> tuple[list[str], list[int]]:
    """The text and type of each embedding by the content of tokenizer.json; one without a token is unused. Raises UserError if
    the tokenizer has more tokens than the model has embeddings."""
    texts = [f"[PAD{number}]" for number in range(size)]
    types = [int(gguf.TokenType.UNUSED)] * size
    added = values.get("added_tokens", [])
    numbers = [*values["model"]["vocab"].values(), *(token["id"] for token in added)]
    if max(numbers) >= size:
        message = f"has {max(numbers) + 1:,} tokens for {size:,} embeddings."
        raise refusal("tokenizer", message, "Use the tokenizer it was trained with.")
    for text, number in values["model"]["vocab"].items():
        texts[number], types[number] = text, gguf.TokenType.NORMAL
    for token in added:
        kind = gguf.TokenType.CONTROL if token["special"] else gguf.TokenType.USER_DEFINED
        texts[token["id"]], types[token["id"]] = token["content"], kind
    return texts, types


def _add_sentencepiece(
    writer: gguf.GGUFWriter, values: dict[str, Any], texts: list[str], types: list[int], *, chats: bool
) -> None:
    """Writes tokens, scores and the handling of the first space. Raises UserError if llama.cpp would split text differently from
    this tokenizer."""
    model = values["model"]
    added = {number for number, kind in enumerate(types) if kind in _ADDED}
    scores = _scores(model, len(texts), added)
    for number, text in enumerate(texts):
        if types[number] == gguf.TokenType.NORMAL and _BYTE.fullmatch(text):
            types[number] = gguf.TokenType.BYTE
    if sum(kind == gguf.TokenType.BYTE for kind in types) != 256:
        raise refusal("tokenizer", "has byte fallback but not a token for every byte.")
    if (unknown := model["vocab"].get(model.get("unk_token"))) is not None:
        types[unknown] = gguf.TokenType.UNKNOWN
    spaced = [
        text.replace(_SPACE, " ") if kind == gguf.TokenType.USER_DEFINED else text
        for text, kind in zip(texts, types, strict=True)
    ]
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(spaced)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    writer.add_add_space_prefix(_prefix(values, chats=chats))


def _scores(model: dict[str, Any], count: int, added: set[int]) -> list[float]:
    """The score of every token; characters, which nothing is merged to, have the lowest of the merged ones. Raises UserError if a
    score for each token cannot replace the merges."""
    vocab: dict[str, int] = model["vocab"]
    places: dict[str, int] = {}
    last = ""
    pairs = merge_pairs(model)
    for left, right in pairs:
        made = left + right
        if made != last and made in places:
            message = f"merges to {made!r} at two priorities, which llama.cpp's scores cannot express."
            raise refusal("tokenizer", message)
        last = made
        places.setdefault(made, len(places))
    _check_complete(vocab, set(pairs), added)
    scores = [-float(len(places))] * count
    for text, place in places.items():
        scores[vocab[text]] = -float(place)
    for number in added:
        scores[number] = _ADDED_SCORE
    return scores


def _check_complete(vocab: dict[str, int], pairs: set[tuple[str, str]], added: set[int]) -> None:
    """llama.cpp merges any two tokens whose texts together are a token."""
    usable = {text for text, number in vocab.items() if number not in added and not _BYTE.fullmatch(text)}
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
        replaces = kind == "Replace" and step["pattern"] == {"String": " "} and step["content"] == _SPACE
        splits_nothing = kind == "Split" and step["pattern"] == {"String": " "}  # all spaces are replaced before
        if kind == "Prepend" and step["prepend"] == _SPACE:
            prefix = True
        elif kind == "Metaspace" and step["replacement"] == _SPACE and step.get("split") is False:
            scheme = step.get("prepend_scheme", "always")
            prefix = scheme == "always" or (scheme == "first" and not chats)
        elif not replaces and not splits_nothing:
            raise refusal("tokenizer", f"changes text by a step ({kind}) that llama.cpp does not have.")
    if not any(step["type"] in ("Replace", "Metaspace") for step in steps):
        raise refusal("tokenizer", f"does not write spaces as {_SPACE}, as llama.cpp does.")
    return prefix


def _steps(step: dict[str, Any] | None, key: str) -> list[dict[str, Any]]:
    return [] if step is None else step.get(key, [step])
