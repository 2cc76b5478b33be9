"""The forms of a result as a user loads them: each renders prompts with its own files and stops where they say."""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from training.config.run_config import RunConfig
from training.errors import UserError
from training.models.loading import quantization
from training.results.parity.generation import greedy
from training.results.parity.reference import Prompt

NAMES = ("adapter", "model", "merged", "gguf", "served")


class Form(Protocol):
    """A loaded form of a result."""

    def prompt_ids(self, prompt: Prompt, arguments: dict[str, Any]) -> list[int]:
        """The tokens that this form makes of a prompt."""

    def answer(self, ids: Sequence[int], longest: int) -> tuple[list[int], NDArray[np.float32] | None]:
        """The tokens of its greedy answer, and the logits (vocabulary,) after the prompt where the form tells them."""


class TransformersForm:
    """A model of transformers with the tokenizer and the generation configuration of `folder`."""

    def __init__(self, model: Any, folder: Path) -> None:
        self._model = model.eval()
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._model.generation_config = GenerationConfig.from_pretrained(folder)

    def prompt_ids(self, prompt: Prompt, arguments: dict[str, Any]) -> list[int]:
        """As `Form`."""
        if prompt.messages is None:
            return [int(token) for token in self._tokenizer(prompt.text)["input_ids"]]
        text = self._tokenizer.apply_chat_template(
            prompt.messages, tools=prompt.tools, tokenize=False, add_generation_prompt=True, **arguments
        )
        return [int(token) for token in self._tokenizer(text, add_special_tokens=False)["input_ids"]]

    def answer(self, ids: Sequence[int], longest: int) -> tuple[list[int], NDArray[np.float32] | None]:
        """As `Form`."""
        return greedy(self._model, ids, None, longest)


class GgufForm:
    """A GGUF file in llama.cpp, with the chat template that the file contains."""

    def __init__(self, file: Path, longest: int) -> None:
        from llama_cpp import Llama

        self._model = Llama(str(file), n_ctx=longest, n_gpu_layers=-1, verbose=False, logits_all=False)
        self._template = self._model.metadata.get("tokenizer.chat_template")

    def prompt_ids(self, prompt: Prompt, arguments: dict[str, Any]) -> list[int]:
        """As `Form`. A prompt without messages gets the special tokens that the file asks for."""
        if prompt.messages is None:
            return [int(token) for token in self._model.tokenize(prompt.text.encode(), add_bos=True, special=False)]
        if not self._template:
            raise UserError("gguf", None, "contains no chat template.", "Export it again.")
        text = self._rendered(prompt, arguments)
        return [int(token) for token in self._model.tokenize(text.encode(), add_bos=False, special=True)]

    def _rendered(self, prompt: Prompt, arguments: dict[str, Any]) -> str:
        from llama_cpp.llama_chat_format import Jinja2ChatFormatter

        def token(number: int) -> str:
            return str(self._model._model.token_get_text(number)) if number >= 0 else ""

        formatter = Jinja2ChatFormatter(self._template, token(self._model.token_eos()), token(self._model.token_bos()))
        return str(formatter(messages=prompt.messages, tools=prompt.tools, **arguments).prompt)

    def answer(self, ids: Sequence[int], longest: int) -> tuple[list[int], NDArray[np.float32] | None]:
        """As `Form`."""
        model = self._model
        model.reset()
        model.eval(list(ids))
        first = np.array(model._ctx.get_logits_ith(-1)[: model.n_vocab()], np.float32)
        found, logits = [int(first.argmax())], first
        while len(found) < longest and not model._model.token_is_eog(found[-1]):
            model.eval([found[-1]])
            logits = np.array(model._ctx.get_logits_ith(-1)[: model.n_vocab()], np.float32)
            found.append(int(logits.argmax()))
        return found, first


@contextmanager
def transformers_form(config: RunConfig, folder: Path, *, on_base: bool) -> Iterator[Form]:
    """A folder as a model; with `on_base`, as an adapter on the base model of `config`."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype: Any = "auto"
    if on_base:
        bits = quantization(config, torch.get_default_dtype(), torch.bfloat16) if config.quantized else None
        base = AutoModelForCausalLM.from_pretrained(
            config.model, revision=config.revision or "main", dtype=dtype, quantization_config=bits
        )
        tokens = len(AutoTokenizer.from_pretrained(folder))
        if tokens > base.get_input_embeddings().num_embeddings:
            base.resize_token_embeddings(tokens)
        model: Any = PeftModel.from_pretrained(base, str(folder))
    else:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    try:
        yield TransformersForm(model.to(device), folder)
    finally:
        del model
        gc.collect()


@contextmanager
def gguf_form(file: Path, longest: int) -> Iterator[Form]:
    """A GGUF file.

    Raises:
        UserError: llama_cpp_python is not installed.
    """
    if find_spec("llama_cpp") is None:
        fix = "Install it (pip install 'lathe-workbench[llama]'), and verify again."
        raise UserError("gguf", None, "can only be read by llama.cpp, which is not installed here.", fix)
    form = GgufForm(file, longest)
    try:
        yield form
    finally:
        form._model.close()
