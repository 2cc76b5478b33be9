"""A process of vLLM that serves a base model and adapters on it, over a socket in a folder that only this user can open."""

import contextlib
import gc
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import torch

from training.errors import UserError
from training.run_folder.paths import VLLM_VARIABLE
from training.vllm.limits import Models, NotLoaded

_PATH = "/v1/completions"
_TIMEOUT = httpx.Timeout(10, read=None)  # an answer may take as long as it takes; a process that ends closes its socket
_CONNECTIONS = httpx.Limits(max_connections=None)
_POLL_SECONDS, _END_SECONDS = 0.2, 10.0
_GPU_SHARE = 0.9
_KEPT_LINES = 40
_ERROR = re.compile(r"(?:\b\w*(?:Error|Exception): |Value error, )\S.*")
_ONLY_REFERS = "Engine core initialization failed"  # to the error above it
_LOG = "The output has the last lines of its log."
_FIX = f"{_LOG} To answer with transformers, unset LATHE_VLLM_COMMAND for the worker."


class VllmError(UserError):
    """vLLM ended, or refused a request with the HTTP status `status`."""

    def __init__(self, status: int, value: str, message: str, fix: str = _FIX) -> None:
        super().__init__("vllm", value, message, fix)
        self.status = status


def command() -> list[str]:
    """The words of the command that starts vLLM; none where transformers answers."""
    return shlex.split(os.environ.get(VLLM_VARIABLE, ""))


@contextmanager
def serving(models: Models, longest: int | None, waiting: Callable[[], None] = lambda: None) -> Iterator["Server"]:
    """Starts vLLM, yields it when it answers, and ends it. `longest`: tokens of prompt and answer, None for what fits in memory.

    Calls `waiting` while it loads.

    Raises:
        NotLoaded: it is not installed, or ended before it answered.
    """
    words = command()
    if shutil.which(words[0]) is None:
        raise NotLoaded("LATHE_VLLM_COMMAND", words[0], "is not a program.", "Install vLLM, or give its path.")
    with tempfile.TemporaryDirectory(prefix="lathe-vllm-") as folder:
        server = Server([*words, *options(models, longest, Path(folder) / "socket")], Path(folder))
        try:
            server.wait(waiting)
            yield server
        finally:
            server.end()


def options(models: Models, longest: int | None, socket: Path) -> list[str]:
    """The arguments of vLLM's program. The defaults of the model's generation_config.json must not apply."""
    found = ["serve", models.base, "--revision", models.revision, "--served-model-name", models.name]
    found += ["--dtype", models.dtype, "--max-model-len", str(longest or "auto"), "--generation-config", "vllm"]
    found += ["--uds", str(socket), *_memory()]
    if models.adapters:
        adapters = [json.dumps({"name": name, "path": str(folder)}) for name, folder in models.adapters.items()]
        found += ["--enable-lora", "--max-loras", str(len(adapters)), "--max-lora-rank", str(models.rank)]
        found += ["--lora-modules", *adapters]
    return found


class Server:
    """The process, and requests to it."""

    def __init__(self, argv: Sequence[str], folder: Path) -> None:
        self._log, self._socket, self._value = folder / "log", folder / "socket", argv[0]
        transport = httpx.HTTPTransport(uds=str(self._socket), limits=_CONNECTIONS)
        self._client = httpx.Client(transport=transport, base_url="http://vllm", timeout=_TIMEOUT)
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "training.vllm.child", *argv],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip

    def wait(self, waiting: Callable[[], None]) -> None:
        """Waits until it answers.

        Raises:
            NotLoaded: it ended before.
        """
        while not self._answers():
            if self._process.poll() is not None:
                raise NotLoaded("vllm", self._value, f"ended while it loaded the model: {self._reason()}", _LOG)
            waiting()
            time.sleep(_POLL_SECONDS)

    def end(self) -> None:
        """Ends it with all its processes."""
        self._client.close()
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def ended(self) -> VllmError:
        """Waits until the process ends. Returns why."""
        self._process.wait()
        return VllmError(503, self._value, f"ended: {self._reason()}")

    def context(self) -> int:
        """The most tokens of prompt and answer.

        Raises:
            VllmError: as `complete`.
        """
        with self._explained():
            return int(self._client.get("/v1/models").json()["data"][0]["max_model_len"])

    def complete(self, body: dict[str, Any]) -> list[list[int]]:
        """The tokens of the answer to each prompt of a request.

        Raises:
            VllmError: it ended, or refused the request.
        """
        with self._explained():
            answer = self._client.post(_PATH, json=body)
            self._check(answer)
            return [one["token_ids"] for one in sorted(answer.json()["choices"], key=lambda one: int(one["index"]))]

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
                        raise self._refusal(part)
                    yield from part["choices"]

    def _answers(self) -> bool:
        try:
            return self._socket.exists() and self._client.get("/health").is_success
        except httpx.TransportError:
            return False

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except httpx.TransportError as error:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_SECONDS)
            gone = self._process.returncode is not None
            message = f"ended: {self._reason()}" if gone else f"does not answer: {error}"
            raise VllmError(503, self._value, message) from None

    def _check(self, answer: httpx.Response) -> None:
        if not answer.is_success:
            try:
                found = answer.json()
            except ValueError:
                found = {"error": {"message": answer.text[:500], "code": answer.status_code}}
            raise self._refusal(found)

    def _refusal(self, found: dict[str, Any]) -> VllmError:
        error = found.get("error") or {}
        status = int(error.get("code") or 500)
        said = str(error.get("message") or found).strip().rstrip(".")
        fix = "Lower max_new_tokens, or shorten the prompt." if "context length" in said else _FIX
        return VllmError(status, self._value, f"refused the request with status {status}: {said}.", fix)

    def _reason(self) -> str:
        """Why the process ended, by its log, whose end goes into the output of this program."""
        lines: list[str] = []
        with contextlib.suppress(FileNotFoundError):  # it was ended, and the folder deleted
            lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        print("\n".join(lines[-_KEPT_LINES:]), file=sys.stderr, flush=True)
        errors = [found[0] for line in lines if (found := _ERROR.search(line)) and _ONLY_REFERS not in line]
        code = self._process.returncode
        how = f"signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"exit code {code}"
        said = (errors or lines or ["it printed nothing"])[-1].strip().rstrip(".")
        return f"{how}, {said}." if code >= 0 else f"{how}."


def _memory() -> list[str]:
    """The share of the GPU that is free: after training this process holds some of it."""
    if not torch.cuda.is_available():
        return []
    gc.collect()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return ["--gpu-memory-utilization", f"{_GPU_SHARE * free / total:.3f}"]
