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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import torch

from training.run_folder.paths import VLLM_VARIABLE
from training.units import signal_name
from training.vllm.client import LOG, Client, VllmError, over_socket
from training.vllm.limits import Models, NotLoaded, max_rank

_POLL_SECONDS, _END_SECONDS = 0.2, 10.0
_GPU_SHARE = 0.9
_SERVER_ERROR = 500
_KEPT_LINES = 40
_FIX = "To answer with transformers, unset LATHE_VLLM_COMMAND for the worker."
_ERROR = re.compile(r"(?:\b\w*(?:Error|Exception): |Value error, )\S.*")
_ONLY_REFERS = "Engine core initialization failed"  # to the error above it


_ADAPTERS = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"}
"""The environment in which vLLM loads adapters while it runs."""

_UPDATED = {"VLLM_SERVER_DEV_MODE": "1"} | _ADAPTERS


@dataclass(frozen=True)
class Beside:
    """A process beside a rank that trains the model, whose samples it draws: its share of the device's memory, whether it frees
    that while the rank trains, and the rank of its adapter. What it says about its end has the `fix`."""

    share: float
    sleeps: bool
    rank: int
    fix: str

    def options(self) -> list[str]:
        """The arguments of vLLM's program. Log-probabilities are those of the distribution that is drawn from."""
        found = ["--logprobs-mode", "processed_logprobs"]
        if torch.cuda.is_available():
            found += ["--gpu-memory-utilization", f"{self.share:.3f}"]
        if self.sleeps:
            found += ["--enable-sleep-mode"]
        return [*found, "--enable-lora", "--max-loras", "1", "--max-lora-rank", str(max_rank(self.rank))]

    def variables(self) -> dict[str, str]:
        """The environment of the process: its weights are updated, and it sees this rank's device alone."""
        if not torch.cuda.is_available():
            return _UPDATED
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(torch.cuda.device_count())))
        return _UPDATED | {"CUDA_VISIBLE_DEVICES": visible.split(",")[torch.cuda.current_device()]}


def command() -> list[str]:
    """The words of the command that starts vLLM; none where transformers answers."""
    return shlex.split(os.environ.get(VLLM_VARIABLE, ""))


@contextmanager
def serving(
    models: Models, longest: int | None, waiting: Callable[[], None] = lambda: None, beside: Beside | None = None
) -> Iterator["Server"]:
    """Starts vLLM, yields it when it answers, and ends it. `longest`: tokens of prompt and answer, None for what fits in memory.

    Calls `waiting` while it loads.

    Raises:
        NotLoaded: it is not installed, or ended before it answered.
    """
    words = command()
    if not words or shutil.which(words[0]) is None:
        value, message = (words[0], "is not a program.") if words else (None, "is not set.")
        raise NotLoaded("LATHE_VLLM_COMMAND", value, message, "Install vLLM, and give its path.")
    with tempfile.TemporaryDirectory(prefix="lathe-vllm-") as folder:
        server = Server([*words, *options(models, longest, Path(folder) / "socket", beside)], Path(folder), beside)
        try:
            server.wait(waiting)
            yield server
        finally:
            server.end()


def options(models: Models, longest: int | None, socket: Path, beside: Beside | None = None) -> list[str]:
    """The arguments of vLLM's program. The defaults of the model's generation_config.json must not apply."""
    found = ["serve", models.base, "--revision", models.revision, "--served-model-name", models.name]
    found += ["--dtype", models.dtype, "--max-model-len", str(longest or "auto"), "--generation-config", "vllm"]
    found += ["--uds", str(socket), *(beside.options() if beside else _memory())]
    if models.adapters:
        adapters = [json.dumps({"name": name, "path": str(folder)}) for name, folder in models.adapters.items()]
        found += ["--enable-lora", "--max-loras", str(len(adapters)), "--max-lora-rank", str(models.rank)]
        found += ["--lora-modules", *adapters]
    return found


class Server(Client):
    """The process, and requests to it."""

    def __init__(self, argv: Sequence[str], folder: Path, beside: Beside | None = None) -> None:
        self._log, self._socket = folder / "log", folder / "socket"
        super().__init__(over_socket(self._socket), argv[0], fix=f"{LOG} {beside.fix if beside else _FIX}")
        self._fix_of_start, variables = (self._fix, beside.variables()) if beside else (LOG, _ADAPTERS)
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "training.vllm.child", *argv], env=os.environ | variables,
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip

    def wait(self, waiting: Callable[[], None]) -> None:
        """Waits until it answers.

        Raises:
            NotLoaded: it ended before.
        """
        while not self._answers():
            if self._process.poll() is not None:
                raise NotLoaded(
                    "vllm", self._value, f"ended while it loaded the model: {self._reason()}", self._fix_of_start
                )
            waiting()
            time.sleep(_POLL_SECONDS)

    def end(self) -> None:
        """Ends it with all its processes."""
        self.close()
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def ended(self) -> VllmError:
        """Waits until the process ends. Returns why."""
        self._process.wait()
        return self._error(503, f"ended: {self._reason()}")

    def _answers(self) -> bool:
        try:
            return self._socket.exists() and self._client.get("/health").is_success
        except httpx.TransportError:
            return False

    def _refusal(self, error: Any, status: int = 0) -> VllmError:
        """The error of a request; one that ends vLLM is explained by its log."""
        refusal = super()._refusal(error, status)
        if refusal.status >= _SERVER_ERROR:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_SECONDS)
            if self._process.returncode is not None:
                return self.ended()
        return refusal

    def _why_lost(self, error: httpx.TransportError) -> str:
        if not isinstance(error, httpx.ReadTimeout):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_SECONDS)
        return super()._why_lost(error) if self._process.returncode is None else f"ended: {self._reason()}"

    def _reason(self) -> str:
        """Why the process ended, by its log, whose end goes into the output of this program."""
        lines: list[str] = []
        with contextlib.suppress(FileNotFoundError):  # it was ended, and the folder deleted
            lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        print("\n".join(lines[-_KEPT_LINES:]), file=sys.stderr, flush=True)
        errors = [found[0] for line in lines if (found := _ERROR.search(line)) and _ONLY_REFERS not in line]
        code = self._process.returncode
        how = f"signal {-code} ({signal_name(-code)})" if code < 0 else f"exit code {code}"
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
