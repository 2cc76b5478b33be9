"""The forms of a result as a user loads them: each renders prompts with its own files and stops where they say."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.request import Request, urlopen

import numpy as np
import torch
from numpy.typing import NDArray
from peft import PeftModel
from transformers import AutoTokenizer, GenerationConfig

from training.addresses import authority, loopback
from training.config.choices import Method, Precision, Quantization, Strategy
from training.config.run_config import RunConfig
from training.config.task import Task
from training.errors import UserError
from training.models.loading import (
    DTYPES,
    check_finite,
    head_arguments,
    keep_four_bit_format,
    model_class,
    quantization,
)
from training.results.parity.generation import Whole
from training.results.parity.reference import ReferencePrompt

_NAME = "result"
_SECONDS = 600.0  # for one answer; loading has no limit, since a model may be large


@dataclass(frozen=True)
class Answered:
    """The tokens of a greedy answer, and as far as the form tells them: the logits (vocabulary,) after the prompt, and the log
    probability of the first token."""

    tokens: list[int]
    logits: NDArray[np.float32] | None = None
    logprob: float | None = None


class ResultForm(Protocol):
    """A loaded form of a result."""

    def prompt_ids(self, prompt: ReferencePrompt, arguments: dict[str, Any]) -> list[int]:
        """The tokens that this form makes of a prompt."""

    def answer(self, prompt: ReferencePrompt, longest: int) -> Answered:
        """Its greedy answer of at most `longest` tokens, where possible from the tokens that training saw."""

    def own_answer(self, prompt: ReferencePrompt, longest: int) -> list[int] | None:
        """As `answer`, with the generation configuration that the form contains; None where the form applies none."""

    def loss(self, prompt: ReferencePrompt) -> float | None:
        """The mean cross-entropy, in nats, of the expected answer; None where the form does not tell it."""


class TransformersForm:
    """A model of transformers with the tokenizer of `folder`, and its generation configuration if it generates."""

    def __init__(self, model: Any, folder: Path, *, generates: bool) -> None:
        check_finite(model, "form", str(folder))
        self._model, self._generates = Whole(model.eval()), generates
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        if generates:
            model.generation_config = GenerationConfig.from_pretrained(folder)

    def prompt_ids(self, prompt: ReferencePrompt, arguments: dict[str, Any]) -> list[int]:
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

    def answer(self, prompt: ReferencePrompt, longest: int) -> Answered:
        ids = prompt.prompt_ids
        return Answered(*(self._model.greedy(ids, None, longest) if self._generates else self._model.scores(ids)))

    def own_answer(self, prompt: ReferencePrompt, longest: int) -> list[int] | None:
        return self._model.own(prompt.prompt_ids, None, longest) if self._generates else None

    def loss(self, prompt: ReferencePrompt) -> float | None:
        return self._model.loss(prompt.prompt_ids, prompt.expected)


def _precision(config: RunConfig) -> Precision:
    """That of the run; where it was chosen for the machine, what this one computes adapters with."""
    chosen = Precision.BF16 if _device() == "cuda" else Precision.FP32
    return chosen if config.precision is Precision.AUTO else config.precision


@contextmanager
def adapter_form(config: RunConfig, folder: Path, bits: Quantization, classes: Sequence[str]) -> Iterator[ResultForm]:
    """The adapter in `folder` on the base model of `config`, whose weights are quantized to `bits`."""
    compute = DTYPES[_precision(config)]
    as_lora = config.model_copy(update={"method": Method.LORA, "quantization": bits, "strategy": Strategy.SINGLE})
    base = model_class(config.task).from_pretrained(
        config.model,
        **head_arguments(config.task, classes),
        revision=config.revision or "main",
        dtype="auto",
        quantization_config=quantization(as_lora, compute, compute),
        device_map={"": _device()},
    )
    keep_four_bit_format(base)
    tokens = len(AutoTokenizer.from_pretrained(folder))
    if tokens > base.get_input_embeddings().num_embeddings:
        base.resize_token_embeddings(tokens)
    adapted = PeftModel.from_pretrained(base, str(folder))
    yield TransformersForm(adapted, folder, generates=config.task.traits.generates)


@contextmanager
def model_form(folder: Path, task: Task) -> Iterator[ResultForm]:
    """The model in `folder`."""
    model = model_class(task).from_pretrained(folder, dtype="auto", device_map={"": _device()})
    yield TransformersForm(model, folder, generates=task.traits.generates)


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


class ServedForm:
    """The result at an address. It renders messages itself; log probabilities stand for logits."""

    def __init__(self, address: str, arguments: dict[str, Any]) -> None:
        self._address, self._arguments = address, arguments

    def prompt_ids(self, prompt: ReferencePrompt, arguments: dict[str, Any]) -> list[int]:  # noqa: ARG002 - known from the start
        return [int(token) for token in self._ask("/tokenize", self._body(prompt))["tokens"]]

    def answer(self, prompt: ReferencePrompt, longest: int) -> Answered:
        """As `Form`, from the prompt as it is rendered there."""
        body = self._body(prompt) | {"temperature": 0, "max_tokens": longest, "return_token_ids": True}
        if prompt.messages is None:
            choice = self._ask("/v1/completions", body | {"logprobs": 1})["choices"][0]
            first = choice["logprobs"]["token_logprobs"][0]
        else:
            body |= {"logprobs": True, "top_logprobs": 1}
            choice = self._ask("/v1/chat/completions", body)["choices"][0]
            first = choice["logprobs"]["content"][0]["logprob"]
        return Answered([int(token) for token in choice["token_ids"]], logprob=float(first))

    def own_answer(self, prompt: ReferencePrompt, longest: int) -> None:
        """None: what is served decodes by the request alone."""

    def loss(self, prompt: ReferencePrompt) -> None:
        """Not told by the API."""

    def _body(self, prompt: ReferencePrompt) -> dict[str, Any]:
        if prompt.messages is None:
            return {"model": _NAME, "prompt": prompt.text}
        tools = {"tools": prompt.tools} if prompt.tools else {}
        return {"model": _NAME, "messages": prompt.messages, "chat_template_kwargs": self._arguments} | tools

    def _ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        request = Request(f"{self._address}{path}", json.dumps(body).encode(), headers)  # noqa: S310 - a local address
        with urlopen(request, timeout=_SECONDS) as answer:  # noqa: S310
            return dict(json.load(answer))


@contextmanager
def served_form(config: RunConfig, folder: Path, arguments: dict[str, Any]) -> Iterator[ResultForm]:
    """Serves the result in `folder` in a process of its own, which ends with the context. Raises UserError if the model cannot be
    served."""
    with subprocess.Popen(_command(config, folder), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdout
            told = _ready(process.stdout)
            yield ServedForm(f"http://{authority(loopback(), told['port'])}", arguments)
        finally:
            process.kill()


def _command(config: RunConfig, folder: Path) -> Sequence[str]:
    command = [sys.executable, "-m", "training.serving"]
    if not config.method.adapts:
        return [*command, str(folder), "--model-name", _NAME]
    revision = ["--revision", config.revision] if config.revision else []
    quantized = ["--quantization", config.quantized.value] if config.quantized else []
    return [*command, config.model, *revision, *quantized, "--adapter", f"{_NAME}={folder}"]


def _ready(lines: Any) -> dict[str, Any]:
    for line in lines:
        if line.startswith(b"{"):
            told: dict[str, Any] = json.loads(line)
            if problem := told.get("error"):
                raise UserError(problem["field"], problem["value"], problem["message"], problem["fix"])
            return told
    raise UserError("served", None, "did not start.", "Start python -m training.serving to see why.")
