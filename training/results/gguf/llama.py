"""Loads a GGUF file in llama.cpp on the CPU: its tokens, logits, loss and answers, to compare with the trained model's."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Self

import torch

from training.errors import UserError

_F32 = 0  # ggml's number of fp32, for the cache of keys and values


def llama_cpp(needed_by: str, otherwise: str = "") -> ModuleType:
    """The package llama_cpp. Raises UserError if it is not installed; the error names `needed_by`, and the fix ends with
    `otherwise`."""
    try:
        import_module("llama_cpp.llama_chat_format")
        return import_module("llama_cpp")
    except ImportError:
        fix = f"Install it (pip install 'lathe-workbench[llama]' compiles it with g++ and cmake){otherwise}."
        raise UserError("type", needed_by, "needs llama.cpp, which is not installed.", fix) from None


class LlamaModel:
    """A GGUF model in llama.cpp with `context` tokens of context; `adapter` is a GGUF adapter that is applied to it.

    Logits of a whole context are kept: context * vocabulary * 4 bytes.

    Raises:
        UserError: llama.cpp is not installed.
        ValueError: llama.cpp cannot load the file.
    """

    def __init__(self, file: Path, context: int = 512, adapter: Path | None = None, threads: int | None = None) -> None:
        library: Any = llama_cpp(file.name)
        self._formatter = library.llama_chat_format.Jinja2ChatFormatter
        self._ends = library.llama_vocab_is_eog
        self._model = library.Llama(
            str(file), n_ctx=context, n_batch=context, n_ubatch=context, logits_all=True, verbose=False, n_threads=threads,
            n_threads_batch=threads, lora_path=str(adapter) if adapter else None, type_k=_F32, type_v=_F32,
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._model.close()

    def tokens(self, text: str, *, special: bool = False) -> list[int]:
        """The tokens of a text, in which special tokens are recognized; `special` adds those that start and end a text."""
        found: list[int] = self._model.tokenize(text.encode(), add_bos=special, special=True)
        return found

    def prompt(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] | None = None, **arguments: Any
    ) -> list[int]:
        """The tokens of a conversation up to the answer, by the chat template in the file with its `arguments`."""
        metadata, text = self._model.metadata, self._model.detokenize
        end, begin = (
            text([number], special=True).decode() if number >= 0 else ""
            for number in (self._model.token_eos(), self._model.token_bos())
        )
        template = metadata["tokenizer.chat_template"]
        rendered = self._formatter(template, eos_token=end, bos_token=begin)(
            messages=list(messages), tools=tools, **arguments
        )
        return self.tokens(rendered.prompt, special=not rendered.added_special)

    def logits(self, tokens: Sequence[int]) -> torch.Tensor:
        """The logits after each token, (tokens, vocabulary), fp32."""
        self._model.reset()
        self._model.eval(list(tokens))
        return torch.from_numpy(self._model.scores[: len(tokens)].copy())

    def greedy(self, tokens: Sequence[int], limit: int) -> tuple[list[int], torch.Tensor]:
        """At most `limit` most probable tokens one by one, with the token at which llama.cpp ends an answer, and the logits
        (vocabulary,) after `tokens`."""
        self._model.reset()
        self._model.eval(list(tokens))
        first = self._last()
        found = [int(first.argmax())]
        while len(found) < limit and not self._ends(self._model._model.vocab, found[-1]):
            self._model.eval(found[-1:])
            found.append(int(self._last().argmax()))
        return found, first

    def _last(self) -> torch.Tensor:
        return torch.from_numpy(self._model.scores[self._model.n_tokens - 1].copy())

    def loss(self, tokens: Sequence[int], start: int = 1) -> float:
        """The mean cross-entropy, in nats, of the tokens from place `start`, which is at least 1, given those before."""
        logits = self.logits(tokens[:-1])[start - 1 :]
        return float(torch.nn.functional.cross_entropy(logits, torch.tensor(tokens[start:])))
