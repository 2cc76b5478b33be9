"""A server process of Lathe, or of another program, and its processor time."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True)
class Server:
    """A server's address and process."""

    address: str
    process: psutil.Process

    def cpu_seconds(self) -> float:
        """Processor time of the process and its children."""
        total = 0.0
        for process in [self.process, *self.process.children(recursive=True)]:
            times = process.cpu_times()
            total += times.user + times.system
        return total


@contextmanager
def served(data: Path) -> Iterator[Server]:
    """Lathe's web server on this data folder."""
    port = free_port()
    environment = os.environ | {"LATHE_DATA_DIR": str(data), "LATHE_PORT": str(port)}
    with started([sys.executable, "-m", "app.server"], f"http://127.0.0.1:{port}", "/healthz", environment) as server:
        yield server


@contextmanager
def started(command: Sequence[str], address: str, ready: str, environment: dict[str, str]) -> Iterator[Server]:
    """A program that answers at `ready`; it is ended afterwards."""
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait(f"{address}{ready}", process)
        yield Server(address, psutil.Process(process.pid))
    finally:
        process.terminate()
        process.wait()


def free_port() -> int:
    """A port that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(address: str, process: "subprocess.Popen[bytes]") -> None:
    until = time.monotonic() + 120
    while time.monotonic() < until and process.poll() is None:
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"{address} does not answer.")
