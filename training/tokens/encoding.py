"""Encodes rendered rows into tokens and spans of tokens with loss, many rows at a time. No torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding
from transformers import PreTrainedTokenizerBase

from training.tokens.order import Integers
from training.tokens.rendered import Rendered, Span


@dataclass(frozen=True)
class Encoded:
    """Encoded rows, untruncated: all tokens concatenated, tokens per row, and (row, first, end) of spans with loss.

    `weights` is the loss weight of each span.
    `first_trained` is a row's first token with loss, except token 0, which has no predecessor; -1 if there is none.
    """

    tokens: NDArray[np.int32]
    lengths: Integers
    spans: NDArray[np.int32]
    first_trained: NDArray[np.int32]
    weights: NDArray[np.float32]


class Encoder:
    """The Rust tokenizer, without truncation and padding."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._backend = tokenizer.backend_tokenizer
        self._backend.no_truncation()
        self._backend.no_padding()
        self._end: int | None = tokenizer.eos_token_id

    def encode(self, rendered: Sequence[Rendered | None]) -> list[Encoding | None]:
        """The encoding of each row; None for None. Releases the GIL."""
        encoded: list[Encoding | None] = [None] * len(rendered)
        # A chat template adds its own special tokens.
        for templated in (True, False):
            indexes = [index for index, row in enumerate(rendered) if row is not None and row.templated is templated]
            texts = [row.text for row in rendered if row is not None and row.templated is templated]
            encodings = self._backend.encode_batch(texts, add_special_tokens=not templated) if texts else []
            for index, encoding in zip(indexes, encodings, strict=True):
                encoded[index] = encoding
        return encoded

    def prompt(self, rendered: Rendered) -> list[int]:
        """The tokens of a row before its last answer, as in training, without a token across the answer's start."""
        (encoding,) = self.encode([rendered])
        assert encoding is not None
        start = rendered.last_answer
        places = (encoding.token_to_chars(index) for index in range(len(encoding)))
        count = sum(1 for _ in takewhile(lambda place: place is None or place[1] <= start, places))
        return list(encoding.ids[:count])

    def whole(self, rendered: Rendered) -> list[int]:
        """All tokens of a row."""
        return [int(token) for token in self.collect([rendered], self.encode([rendered])).tokens]

    def collect(self, rendered: Sequence[Rendered | None], encodings: Sequence[Encoding | None]) -> Encoded:
        """The tokens and spans of encoded rows; a row without an encoding has no tokens."""
        ids: list[list[int]] = []
        spans: list[tuple[int, int, int]] = []
        weights: list[float] = []
        for number, (row, encoding) in enumerate(zip(rendered, encodings, strict=True)):
            if row is None or encoding is None:
                ids.append([])
                continue
            tokens, trained = self._tokens(row, encoding)
            ids.append(tokens)
            spans += [(number, first, end) for first, end, _ in trained]
            weights += [weight for _, _, weight in trained]
        lengths = np.fromiter((len(tokens) for tokens in ids), np.int64, len(ids))
        flat = np.fromiter(chain.from_iterable(ids), np.int32, int(lengths.sum()))
        where = np.array(spans, np.int32).reshape(-1, 3)
        return Encoded(flat, lengths, where, _first_trained(where, len(ids)), np.array(weights, np.float32))

    def _tokens(self, row: Rendered, encoding: Any) -> tuple[list[int], list[tuple[int, int, float]]]:
        """The tokens of a row, and (first, end, weight) of its spans with loss."""
        tokens: list[int] = encoding.ids
        answers = zip(row.spans, row.weights or [1.0] * len(row.spans), strict=True)
        found = ((token_span(encoding, answer, row.text), weight) for answer, weight in answers)
        trained = [(*span, weight) for span, weight in found if span]
        if row.templated or self._end is None or not row.ends:
            return tokens, trained
        # Without a template the answer ends with an end token with loss: the tokenizer's, or one added here.
        if tokens[-1:] != [self._end]:
            tokens.append(self._end)
        if not row.end_weight:
            return tokens, trained
        if trained and trained[-1][1] == len(tokens) - 1:
            trained[-1] = (trained[-1][0], len(tokens), trained[-1][2])
        elif not trained or trained[-1][1] < len(tokens):
            trained.append((len(tokens) - 1, len(tokens), row.end_weight))
        return tokens, trained


def token_span(encoding: Any, answer: Span, text: str) -> Span | None:
    """The tokens [first, end) of the characters [start, end). A token across the start or the end belongs to the answer: without
    it a part of the answer would carry no loss."""
    start, end = answer
    if start >= end:
        return None
    first, last = encoding.char_to_token(start), encoding.char_to_token(end - 1)
    if first is None or last is None:
        return _span_by_offsets(encoding, answer)
    # A character may have several tokens, of which the first is named; after the text only special tokens follow.
    last = _text_end(encoding) if end == len(text) else _after(encoding, last, end)
    return (first, last) if first < last else None


def _after(encoding: Any, token: int, end: int) -> int:
    """The token after those of the characters before `end`, beginning at one of them."""
    while token < len(encoding) and (place := encoding.token_to_chars(token)) is not None and place[0] < end:
        token += 1
    return token


def _text_end(encoding: Any) -> int:
    """The number of tokens without the special tokens at the end."""
    last = len(encoding)
    while last and encoding.token_to_chars(last - 1) is None:
        last -= 1
    return last


def _span_by_offsets(encoding: Any, answer: Span) -> Span | None:
    """As `token_span`, if a boundary's character has no token, such as a space that the tokenizer drops."""
    start, end = answer
    inside = [index for index, (first, last) in enumerate(encoding.offsets) if max(first, start) < min(last, end)]
    return (inside[0], inside[-1] + 1) if inside else None


def _first_trained(spans: NDArray[np.int32], rows: int) -> NDArray[np.int32]:
    first = np.full(rows, -1, np.int32)
    begin = np.maximum(spans[:, 1], 1)
    has_loss = begin < spans[:, 2]
    # In reverse, so that a row's first span overwrites its later ones.
    first[spans[has_loss, 0][::-1]] = begin[has_loss][::-1]
    return first
