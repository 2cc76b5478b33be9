"""From text to tokens and the tokens that carry loss, many rows at a time. No torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding
from transformers import PreTrainedTokenizerBase

from training.order import Integers
from training.rendering import Rendered, Span


@dataclass(frozen=True)
class Encoded:
    """Rows as tokens, untruncated: all tokens one after another, tokens a row, and (row, first, end) of what carries loss.

    `first_trained` is a row's first token that carries loss, the very first left out: nothing comes before it to predict it
    from. It is -1 where there is none.
    """

    tokens: NDArray[np.int32]
    lengths: Integers
    spans: NDArray[np.int32]
    first_trained: NDArray[np.int32]


class Encoder:
    """A tokenizer's Rust part, told to leave every row whole."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._backend = tokenizer.backend_tokenizer
        self._backend.no_truncation()
        self._backend.no_padding()
        self._end: int | None = tokenizer.eos_token_id

    def encode(self, rendered: Sequence[Rendered | None]) -> list[Encoding | None]:
        """The library's encodings; None for what is None. Releases the interpreter's lock while it works."""
        found: list[Encoding | None] = [None] * len(rendered)
        # A chat template writes its own special tokens, and the end of the last turn among them.
        for templated in (True, False):
            mine = [index for index, row in enumerate(rendered) if row is not None and row.templated is templated]
            texts = [row.text for row in rendered if row is not None and row.templated is templated]
            encodings = self._backend.encode_batch(texts, add_special_tokens=not templated) if texts else []
            for index, encoding in zip(mine, encodings, strict=True):
                found[index] = encoding
        return found

    def prompt(self, rendered: Rendered) -> list[int]:
        """The tokens of a row before its last answer, the same that training sees there. A token that straddles the answer's
        beginning is not among them."""
        (encoding,) = self.encode([rendered])
        assert encoding is not None
        start = rendered.spans[-1][0]
        places = (encoding.token_to_chars(index) for index in range(len(encoding)))
        count = sum(1 for _ in takewhile(lambda place: place is None or place[1] <= start, places))
        return list(encoding.ids[:count])

    def whole(self, rendered: Rendered) -> list[int]:
        """All tokens of a row."""
        return [int(token) for token in self.collect([rendered], self.encode([rendered])).tokens]

    def collect(self, rendered: Sequence[Rendered | None], encodings: Sequence[Encoding | None]) -> Encoded:
        """Tokens and spans of rows that `encode` has encoded; a row without an encoding has no tokens."""
        ids: list[list[int]] = []
        spans: list[tuple[int, int, int]] = []
        for number, (row, encoding) in enumerate(zip(rendered, encodings, strict=True)):
            if row is None or encoding is None:
                ids.append([])
                continue
            tokens, trained = self._tokens(row, encoding)
            ids.append(tokens)
            spans += [(number, first, end) for first, end in trained]
        lengths = np.fromiter((len(tokens) for tokens in ids), np.int64, len(ids))
        flat = np.fromiter(chain.from_iterable(ids), np.int32, int(lengths.sum()))
        where = np.array(spans, np.int32).reshape(-1, 3)
        return Encoded(flat, lengths, where, _first_trained(where, len(ids)))

    def _tokens(self, row: Rendered, encoding: Any) -> tuple[list[int], list[Span]]:
        tokens: list[int] = encoding.ids
        trained = [span for answer in row.spans if (span := token_span(encoding, answer, row.text))]
        if row.templated or self._end is None:
            return tokens, trained
        # Outside a template an answer is ended by the end token, which is to be learned: ours, or the tokenizer's own.
        if tokens[-1:] != [self._end]:
            tokens.append(self._end)
        if trained and trained[-1][1] == len(tokens) - 1:
            trained[-1] = (trained[-1][0], len(tokens))
        elif not trained or trained[-1][1] < len(tokens):
            trained.append((len(tokens) - 1, len(tokens)))
        return tokens, trained


def token_span(encoding: Any, answer: Span, text: str) -> Span | None:
    """The tokens [first, end) that lie in the characters [start, end); one that straddles a boundary is not among them."""
    start, end = answer
    if start >= end:
        return None
    first = encoding.char_to_token(start)
    if first is None:
        return _span_by_offsets(encoding, answer)
    if encoding.token_to_chars(first)[0] < start:
        first += 1
    last = _text_end(encoding) if end == len(text) else encoding.char_to_token(end)
    if last is None:
        return _span_by_offsets(encoding, answer)
    return (first, last) if first < last else None


def _text_end(encoding: Any) -> int:
    """The number of tokens less the special ones that the tokenizer put at the end."""
    last = len(encoding)
    while last and encoding.token_to_chars(last - 1) is None:
        last -= 1
    return last


def _span_by_offsets(encoding: Any, answer: Span) -> Span | None:
    """The same where a boundary's character belongs to no token, as spaces that a tokenizer drops."""
    start, end = answer
    inside = [index for index, (first, last) in enumerate(encoding.offsets) if last > first >= start and last <= end]
    return (inside[0], inside[-1] + 1) if inside else None


def _first_trained(spans: NDArray[np.int32], rows: int) -> NDArray[np.int32]:
    first = np.full(rows, -1, np.int32)
    begin = np.maximum(spans[:, 1], 1)
    learns = begin < spans[:, 2]
    # Backwards, so that of several spans of a row the first one stays.
    first[spans[learns, 0][::-1]] = begin[learns][::-1]
    return first
