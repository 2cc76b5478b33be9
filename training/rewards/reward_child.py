"""The process that computes rewards, and its pipes."""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

import psutil

from training.limited import Limits, start_limited
from training.units import byte_size, signal_name

PROGRAM = "training.rewards.reward_program"
_NO_CPU_LIMIT = 10**8  # seconds: each request has a limit on its time
_PAUSE_SECONDS = 0.001  # to read many answers at once: each sample has one
_LONGEST_LINE = 2**20  # bytes of an answer
_KEPT_ERRORS = 4_000  # bytes
_PIPE_BYTES = 65_536
_GARBLED = "wrote into the answers of its process"


class Died(Exception):  # noqa: N818
    """The process was ended, or ended itself."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class RewardChild:
    """A process that answers requests."""

    def __init__(self, memory_bytes: int) -> None:
        self._memory = memory_bytes
        limits = Limits(memory_bytes, _NO_CPU_LIMIT)
        self._child = start_limited(PROGRAM, [], limits, stdin=subprocess.PIPE, start_new_session=True, bufsize=0)
        assert self._child.stdin and self._child.stdout and self._child.stderr
        self._input, self._output, self._errors = self._child.stdin, self._child.stdout, self._child.stderr
        for pipe in (self._input, self._output, self._errors):
            os.set_blocking(pipe.fileno(), False)
        self._last_errors = b""

    def exchange(self, request: dict[str, Any], take: Callable[..., None], seconds: float) -> None:
        """Sends a request, which may take `seconds`, and hands on the words of each answer up to "done".

        Raises:
            Died: the process ended, or is too slow.
        """
        unsent = memoryview(json.dumps(request, default=str).encode() + b"\n")
        received, deadline = b"", time.monotonic() + seconds
        with selectors.DefaultSelector() as ready:
            ready.register(self._input, selectors.EVENT_WRITE)
            ready.register(self._output, selectors.EVENT_READ)
            ready.register(self._errors, selectors.EVENT_READ)
            while True:
                left = deadline - time.monotonic()
                events = [key.fileobj for key, _ in ready.select(left)] if left > 0 else []
                if not events:
                    raise self._too_slow(seconds)
                if self._errors in events and not self._drain():
                    ready.unregister(self._errors)
                if self._input in events and not (unsent := self._send(unsent)):
                    ready.unregister(self._input)
                if self._output in events:
                    part = os.read(self._output.fileno(), _PIPE_BYTES)
                    if not part:
                        raise self._ended()
                    *lines, received = (received + part).split(b"\n")
                    if _hand_on(lines, take):
                        return
                    if len(received) > _LONGEST_LINE:
                        raise Died("ended", _GARBLED)
                    time.sleep(_PAUSE_SECONDS)

    def kill(self) -> None:
        """Ends the process, and what it may have started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)
        with self._child:  # closes the pipes and waits
            self._child.kill()

    def _send(self, unsent: memoryview) -> memoryview:
        try:
            return unsent[os.write(self._input.fileno(), unsent[:_PIPE_BYTES]) :]
        except BlockingIOError:
            return unsent
        except BrokenPipeError:
            raise self._ended() from None

    def _drain(self) -> bool:
        """Reads what is on standard error; False at its end."""
        part = os.read(self._errors.fileno(), _PIPE_BYTES)
        self._last_errors = (self._last_errors + part)[-_KEPT_ERRORS:]
        return bool(part)

    def _too_slow(self, seconds: float) -> Died:
        used = 0.0
        with contextlib.suppress(psutil.Error):
            times = psutil.Process(self._child.pid).cpu_times()
            used = times.user + times.system
        return Died("time", f"took more than {seconds:g} s (processor time: {used:.1f} s) and was ended")

    def _ended(self) -> Died:
        code = self._child.wait()
        with contextlib.suppress(BlockingIOError):
            while self._drain():
                pass
        last = (self._last_errors.decode(errors="replace").strip().splitlines() or [""])[-1][:200]
        if "MemoryError" in last or "bad_alloc" in last:
            return Died("memory", f"needs more than {byte_size(self._memory)} of memory")
        end = f"exit code {code}" if code >= 0 else signal_name(-code)
        return Died("ended", f"ended its process ({end})" + (f": {last}" if last else ""))


def _hand_on(lines: Sequence[bytes], take: Callable[..., None]) -> bool:
    """True after the last answer. Code of a user can write anything into the answers."""
    for line in lines:
        try:
            words = json.loads(line)
            if words == ["done"]:
                return True
            take(*words)
        except (ValueError, TypeError, LookupError, OverflowError, RecursionError):
            raise Died("ended", _GARBLED) from None
    return False
