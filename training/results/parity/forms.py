"""The forms of a result as a user loads them: each renders prompts with its own files and stops where they say."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from peft import PeftModel
from transformers import AutoTokenizer, GenerationConfig

from training.config.choices import Method, Precision, Quantization, Strategy, Task
from training.config.run_config import RunConfig
from training.models.finite import check_finite
from training.models.loading import DTYPES, head_arguments, keep_four_bit_format, model_class, quantization
from training.results.gguf.llama import LlamaModel
from training.results.parity.generation import answer_loss, greedy, scores
from training.results.parity.reference import Prompt


@dataclass(frozen=True)
class Answered:
    """The tokens of a greedy answer, and as far as the form tells them: the logits (vocabulary,) after the prompt, and the log
    probability of the first token."""

    tokens: list[int]
    logits: NDArray[np.float32] | None = None
    logprob: float | None = None


class Form(Protocol):
    """A loaded form of a result."""

    def prompt_ids(self, prompt: Prompt, arguments: dict[str, Any]) -> list[int]:
        """The tokens that this form makes of a prompt."""

    def answer(self, prompt: Prompt, longest: int) -> Answered:
        """Its greedy answer of at most `longest` tokens, where possible from the tokens that training saw."""

    def loss(self, prompt: Prompt) -> float | None:
        """The mean cross-entropy, in nats, of the expected answer; None where the form does not tell it."""


class TransformersForm:
    """A model of transformers with the tokenizer of `folder`, and its generation configuration if it generates."""

    def __init__(self, model: Any, folder: Path, *, generates: bool) -> None:
        check_finite(model, "form", str(folder))
        self._model, self._generates = model.eval(), generates
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        if generates:
            self._model.generation_config = GenerationConfig.from_pretrained(folder)

    def prompt_ids(self, prompt: Prompt, arguments: dict[str, Any]) -> list[int]:
        """As `Form`."""
        if prompt.messages is None:
            return [int(token) for token in self._tokenizer(prompt.text)["input_ids"]]
        text = self._tokenizer.apply_chat_template(
            prompt.messages,
            tools=prompt.tools,
            tokenize=False,
            add_generation_prompt=not prompt.complete,
            **arguments,
        )
        return [int(token) for token in self._tokenizer(text, add_special_tokens=False)["input_ids"]]

    def answer(self, prompt: Prompt, longest: int) -> Answered:
        """As `Form`."""
        ids = prompt.prompt_ids
        return Answered(*(greedy(self._model, ids, None, longest) if self._generates else scores(self._model, ids)))

    def loss(self, prompt: Prompt) -> float | None:
        """As `Form`."""
        return answer_loss(self._model, prompt.prompt_ids, prompt.expected)


class GgufForm:
    """A GGUF file in llama.cpp, with the chat template that the file contains."""

    def __init__(self, model: LlamaModel) -> None:
        self._model = model

    def prompt_ids(self, prompt: Prompt, arguments: dict[str, Any]) -> list[int]:
        """As `Form`. A prompt without messages gets the special tokens that the file asks for."""
        if prompt.messages is None:
            return self._model.tokens(prompt.text, special=True)
        return self._model.prompt(prompt.messages, prompt.tools, **arguments)

    def answer(self, prompt: Prompt, longest: int) -> Answered:
        """As `Form`."""
        found, first = self._model.greedy(prompt.prompt_ids, longest)
        return Answered(found, first.numpy())

    def loss(self, prompt: Prompt) -> float:
        """As `Form`."""
        return self._model.loss([*prompt.prompt_ids, *prompt.expected], len(prompt.prompt_ids))


@contextmanager
def adapter_form(config: RunConfig, folder: Path, bits: Quantization, classes: Sequence[str]) -> Iterator[Form]:
    """The adapter in `folder` on the base model of `config`, whose weights are quantized to `bits`."""
    compute = DTYPES.get(Precision(config.precision), torch.bfloat16 if _device() == "cuda" else torch.float32)
    asked = config.model_copy(update={"method": Method.LORA, "quantization": bits, "strategy": Strategy.SINGLE})
    base = model_class(config.task).from_pretrained(
        config.model,
        **head_arguments(config.task, classes),
        revision=config.revision or "main",
        dtype="auto",
        quantization_config=quantization(asked, compute, compute),
        device_map={"": _device()},
    )
    keep_four_bit_format(base)
    tokens = len(AutoTokenizer.from_pretrained(folder))
    if tokens > base.get_input_embeddings().num_embeddings:
        base.resize_token_embeddings(tokens)
    adapted = PeftModel.from_pretrained(base, str(folder))
    yield TransformersForm(adapted, folder, generates=config.task.generates)


@contextmanager
def model_form(folder: Path, task: Task) -> Iterator[Form]:
    """The model in `folder`."""
    model = model_class(task).from_pretrained(folder, dtype="auto", device_map={"": _device()})
    yield TransformersForm(model, folder, generates=task.generates)


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


@contextmanager
def gguf_form(file: Path, longest: int) -> Iterator[Form]:
    """A GGUF file, for prompts with answers of at most `longest` tokens.

    Raises:
        UserError: llama.cpp is not installed.
    """
    with LlamaModel(file, longest) as model:
        yield GgufForm(model)
