"""Requests to vLLM's HTTP API, and what it answers to them."""

import json
import math
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from training.errors import UserError

_PATH = "/v1/completions"
_TIMEOUT = httpx.Timeout(10, read=None)  # an answer may take as long as it takes; a process that ends closes its socket
# Its web server closes connections that were idle for 5 s, and one that is used at that moment is lost.
_CONNECTIONS = httpx.Limits(max_connections=None, keepalive_expiry=1.0)
# What reading an answer in another form raises, and a host whose name cannot be encoded.
_UNREADABLE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError, httpx.DecodingError)
LOG = "The output has the last lines of its log."


class VllmError(UserError):
    """vLLM ended, did not answer in time, or refused a request with the HTTP status `status`; or what answers is no vLLM."""

    def __init__(self, status: int, value: str, message: str, fix: str, field: str = "vllm") -> None:
        super().__init__(field, value, message, fix)
        self.status = status


@dataclass(frozen=True)
class DrawnSample:
    """The tokens of an answer, its end token included, the log-probability of each, and the prompt as vLLM took it."""

    tokens: list[int]
    logps: list[float]
    prompt: list[int]


class Client:
    """Requests to the server at the address `value`, which the setting or variable `field` names."""

    def __init__(self, http: httpx.Client, value: str, field: str = "vllm", fix: str = "") -> None:
        self._client, self._value, self._field, self._fix = http, value, field, fix

    def close(self) -> None:
        self._client.close()

    def models(self) -> list[dict[str, Any]]:
        """The base model and then its adapters, as `/v1/models` lists them.

        Raises:
            VllmError: as `complete`.
        """
        with self._explained():
            answer = self._client.get("/v1/models")
            self._check(answer)
            return [one | {"id": str(one["id"])} for one in answer.json()["data"]]

    def context(self) -> int:
        """The most tokens of prompt and answer.

        Raises:
            VllmError: as `complete`.
        """
        with self._explained():
            return int(self.models()[0]["max_model_len"])

    def complete(self, body: dict[str, Any]) -> list[list[int]]:
        """The tokens of the answer to each prompt of a request.

        Raises:
            VllmError: it ended, refused the request, or is no vLLM server.
        """
        with self._explained():
            choices = self._post(_PATH, body)["choices"]
            return [_tokens(one["token_ids"]) for one in sorted(choices, key=lambda one: int(one["index"]))]

    def sample(self, body: dict[str, Any], seconds: float) -> DrawnSample:
        """The answer to the one prompt of a request.

        Raises:
            VllmError: as `complete`, or it did not answer within `seconds`.
        """
        more = {"logprobs": 0, "return_tokens_as_token_ids": True, "return_token_ids": True}
        with self._explained():
            (choice,) = self._post(_PATH, body | more, seconds)["choices"]
            values = (choice["logprobs"] or {}).get("token_logprobs", ())
            logps = [math.nan if value is None else float(value) for value in values]
            return DrawnSample(_tokens(choice["token_ids"]), logps, _tokens(choice.get("prompt_token_ids") or []))

    def load_adapter(self, name: str, folder: Path) -> None:
        """Loads the adapter in a folder, which the server must see under the same path.

        Raises:
            VllmError: as `complete`.
        """
        self._post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})

    def unload_adapter(self, name: str) -> None:
        """Forgets a loaded adapter.

        Raises:
            VllmError: as `complete`.
        """
        self._post("/v1/unload_lora_adapter", {"lora_name": name})

    def sleep(self) -> None:
        """Moves the weights to host memory and frees the keys and values. Needs VLLM_SERVER_DEV_MODE and --enable-sleep-mode."""
        self._post("/sleep?level=1")

    def wake(self) -> None:
        """Reverses `sleep`."""
        self._post("/wake_up")

    def stream(self, body: dict[str, Any]) -> Generator[dict[str, Any]]:
        """The parts of one answer. Closing the iterator ends the answer.

        Raises:
            VllmError: as `complete`.
        """
        with self._explained(), self._client.stream("POST", _PATH, json=body | {"stream": True}) as answer:
            if not answer.is_success:
                answer.read()
            self._check(answer)
            for line in answer.iter_lines():
                text = line.removeprefix("data: ")
                if text and text != "[DONE]":
                    part = json.loads(text)
                    if "error" in part:
                        raise self._refusal(part["error"])
                    yield from part["choices"]

    def _post(self, path: str, body: dict[str, Any] | None = None, seconds: float | None = None) -> dict[str, Any]:
        """The JSON object of an answer; of an answer in another form nothing."""
        with self._explained():
            timeout = _TIMEOUT if seconds is None else httpx.Timeout(10, read=seconds)
            answer = self._client.post(path, json=body, timeout=timeout)
            self._check(answer)
            is_json = answer.headers.get("content-type", "").startswith("application/json")
            return dict(answer.json()) if is_json else {}

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """A context in which a request is sent and its answer read. It raises every error as a VllmError."""
        try:
            yield
        except httpx.TransportError as error:
            raise self._error(503, self._why_lost(error)) from None
        except _UNREADABLE as error:
            raise self._error(502, f"is no vLLM server ({error!r}).") from error

    def _why_lost(self, error: httpx.TransportError) -> str:
        """Why the connection was lost, as a sentence without a subject."""
        if isinstance(error, httpx.ReadTimeout):
            return "did not answer in time."
        return f"does not answer: {error}"

    def _error(self, status: int, message: str, fix: str = "") -> VllmError:
        return VllmError(status, self._value, message, fix or self._fix, self._field)

    def _check(self, answer: httpx.Response) -> None:
        if not answer.is_success:
            try:
                found = answer.json()
            except (ValueError, RecursionError):
                found = None
            error = found.get("error", found) if isinstance(found, dict) else None
            raise self._refusal(error or answer.text[:500] or answer.reason_phrase, answer.status_code)

    def _refusal(self, error: Any, status: int = 0) -> VllmError:
        """The error of an `error` in an answer. Without a status of the answer its code is the status."""
        values = error if isinstance(error, dict) else {"message": error}
        code = values.get("code")
        status = status or (code if isinstance(code, int) else 500)
        said = str(values.get("message") or error).strip().rstrip(".")
        fix = "Lower max_new_tokens, or shorten the prompt." if "context length" in said else ""
        return self._error(status, f"refused the request with status {status}: {said}.", fix)


def _tokens(values: Any) -> list[int]:
    return [int(value) for value in values]


def over_socket(path: Path) -> httpx.Client:
    """Connections to a server that listens on a socket of this machine."""
    transport = httpx.HTTPTransport(uds=str(path), limits=_CONNECTIONS)
    return httpx.Client(transport=transport, base_url="http://vllm", timeout=_TIMEOUT)


def over_network(url: str) -> httpx.Client:
    """Connections to a server by its address, which may end with the API's version.

    Raises:
        VllmError: it is no address.
    """
    try:
        return httpx.Client(base_url=url.rstrip("/").removesuffix("/v1"), timeout=_TIMEOUT, limits=_CONNECTIONS)
    except (httpx.InvalidURL, ValueError) as error:
        fix = "Give http://HOST:PORT/v1 or https://HOST/v1."
        raise VllmError(502, url, f"is no vLLM server ({error}).", fix, "vllm_url") from None
