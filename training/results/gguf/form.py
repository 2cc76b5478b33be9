"""A GGUF file as a form of a result, which is compared with the trained model."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from training.results.gguf.llama import LlamaModel
from training.results.parity.forms import Answered, ResultForm
from training.results.parity.reference import ReferencePrompt


class GgufForm:
    """A GGUF file in llama.cpp, with the chat template that the file contains."""

    def __init__(self, model: LlamaModel) -> None:
        self._model = model

    def prompt_ids(self, prompt: ReferencePrompt, arguments: dict[str, Any]) -> list[int]:
        """As `Form`. A prompt without messages gets the special tokens that the file asks for."""
        if prompt.messages is None:
            return self._model.tokens(prompt.text, special=True)
        return self._model.prompt(prompt.messages, prompt.tools, **arguments)

    def answer(self, prompt: ReferencePrompt, longest: int) -> Answered:
        found, first = self._model.greedy(prompt.prompt_ids, longest)
        return Answered(found, first.numpy())

    def own_answer(self, prompt: ReferencePrompt, longest: int) -> None:
        """None: GGUF files contain no generation configuration."""

    def loss(self, prompt: ReferencePrompt) -> float:
        return self._model.loss([*prompt.prompt_ids, *prompt.expected], len(prompt.prompt_ids))


@contextmanager
def gguf_form(file: Path, longest: int) -> Iterator[ResultForm]:
    """A GGUF file, for prompts with answers of at most `longest` tokens. Raises UserError if llama.cpp is not installed."""
    with LlamaModel(file, longest) as model:
        yield GgufForm(model)
