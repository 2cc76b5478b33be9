"""The served form: a process of `training.serving` that is asked over HTTP as OpenAI's API."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from training.config.run_config import RunConfig
from training.errors import UserError
from training.results.parity.forms import Answered, Form
from training.results.parity.reference import Prompt

_NAME = "result"
_SECONDS = 600.0  # for one answer; loading has no limit, since a model may be large


class ServedForm:
    """The result at an address. It renders messages itself; log probabilities stand for logits."""

    def __init__(self, address: str, arguments: dict[str, Any]) -> None:
        self._address, self._arguments = address, arguments

    def prompt_ids(self, prompt: Prompt, arguments: dict[str, Any]) -> list[int]:  # noqa: ARG002 - known from the start
        """As `Form`."""
        return [int(token) for token in self._ask("/tokenize", self._asked(prompt))["tokens"]]

    def answer(self, prompt: Prompt, longest: int) -> Answered:
        """As `Form`, from the prompt as it is rendered there."""
        asked = self._asked(prompt) | {"temperature": 0, "max_tokens": longest, "return_token_ids": True}
        if prompt.messages is None:
            choice = self._ask("/v1/completions", asked | {"logprobs": 1})["choices"][0]
            first = choice["logprobs"]["token_logprobs"][0]
        else:
            asked |= {"logprobs": True, "top_logprobs": 1}
            choice = self._ask("/v1/chat/completions", asked)["choices"][0]
            first = choice["logprobs"]["content"][0]["logprob"]
        return Answered([int(token) for token in choice["token_ids"]], logprob=float(first))

    def loss(self, prompt: Prompt) -> None:
        """Not told by the API."""

    def _asked(self, prompt: Prompt) -> dict[str, Any]:
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
def served_form(config: RunConfig, folder: Path, arguments: dict[str, Any]) -> Iterator[Form]:
    """Serves the result in `folder` in a process of its own, which ends with the context.

    Raises:
        UserError: the model cannot be served.
    """
    with subprocess.Popen(_command(config, folder), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdout
            told = _ready(process.stdout)
            yield ServedForm(f"http://127.0.0.1:{told['port']}", arguments)
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
