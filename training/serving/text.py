"""The text of an answer while its tokens arrive: whole characters only, up to a stop string."""

import re
from collections.abc import Sequence
from typing import Any

from transformers.convert_slow_tokenizer import bytes_to_unicode

_BYTE = re.compile("<0x[0-9A-F]{2}>")
_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"


class Detokenizer:
    """Turns tokens into text one by one; the text of all calls together is that of all tokens."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._start = self._read = 0  # tokens before `_read` have been returned; decoding begins at `_start`

    def add(self, token: int) -> str:
        """The text that the token completes; "" within a character."""
        self._tokens.append(token)
        return self._next(final=False)

    def rest(self) -> str:
        """The text of incomplete characters at the end."""
        return self._next(final=True)

    def _next(self, *, final: bool) -> str:
        before = self._decode(self._tokens[self._start : self._read])
        text = self._decode(self._tokens[self._start :])
        if len(text) <= len(before) or (text.endswith(_INCOMPLETE) and not final):
            return ""
        self._start, self._read = self._read, len(self._tokens)
        return text[len(before) :]

    def _decode(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False))


class UntilStop:
    """Passes text on up to the first stop string, which it omits; it holds back what may be the beginning of one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.stopped = False

    def add(self, text: str) -> str:
        """The text that can be shown."""
        if self.stopped:
            return ""
        text = self._held + text
        places = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        if places:
            self.stopped, self._held = True, ""
            return text[: min(places)]
        kept = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]

    def rest(self) -> str:
        """What was held back, at the end of the answer."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` with which `stop` begins."""
    return next((length for length in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:length])), 0)


class TokenBytes:
    """The bytes of single tokens, also of those that are a part of a character."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._added = {token: str(added.content).encode() for token, added in tokenizer.added_tokens_decoder.items()}
        backend = getattr(tokenizer, "backend_tokenizer", None)
        decoder = backend.decoder.__getstate__() if backend and backend.decoder else b""
        self._by_bytes = (
            {letter: byte for byte, letter in bytes_to_unicode().items()} if b'"ByteLevel"' in decoder else {}
        )
        self._has_fallback = b'"ByteFallback"' in decoder
        self._has_metaspace = "▁".encode() in decoder

    def of(self, token: int) -> bytes:
        """The bytes that the token stands for; joined, those of an answer's tokens are its text."""
        if token in self._added:
            return self._added[token]
        piece = self._tokenizer.convert_ids_to_tokens(token)
        if self._by_bytes and all(letter in self._by_bytes for letter in piece):
            return bytes(self._by_bytes[letter] for letter in piece)
        if self._has_fallback and _BYTE.fullmatch(piece):
            return bytes.fromhex(piece[3:5])
        if self._has_metaspace:
            return str(piece).replace("▁", " ").encode()
        return str(self._tokenizer.decode([token])).encode()
