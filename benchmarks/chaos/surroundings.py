"""What surrounds an installation of benchmarks.chaos: a hub that accepts uploads, a disk that can be slow, other load."""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.chaos.kinds import HUB_OWNER
from tests.stand_in_hub import Received, receive

_TOKEN = "hf_good"
_SOURCE = Path(__file__).with_name("slow_disk.c")


@contextlib.contextmanager
def hub() -> Iterator[Received]:
    """A context with a hub for this process and those that it starts. Yields what is uploaded."""
    with receive(f"{HUB_OWNER}/*", _TOKEN) as (address, received):
        os.environ |= {"HF_ENDPOINT": address, "LATHE_HUB_TOKEN": _TOKEN}
        os.environ.pop("HF_HUB_OFFLINE", None)
        yield received


class SlowDisk:
    """Delays fsync in all processes with its `environment`, SQLite's and the queue server's too, while `slow` says so.

    Needs a C compiler; without one, `works` is false.
    """

    def __init__(self, folder: Path) -> None:
        self._file, library = folder / "slow-disk", folder / "slow_disk.so"
        compiler = shutil.which("cc")
        command = [compiler or "", "-shared", "-fPIC", "-O1", "-o", str(library), str(_SOURCE), "-ldl"]
        self.works = compiler is not None and subprocess.run(command, check=False).returncode == 0
        self.environment = {"LD_PRELOAD": str(library), "CHAOS_SLOW_DISK": str(self._file)} if self.works else {}

    def slow(self, seconds: float) -> None:
        """Lets each fsync take `seconds` longer; 0 ends that."""
        if seconds:
            self._file.write_text(str(seconds), encoding="ascii")
        else:
            self._file.unlink(missing_ok=True)


class Load:
    """Processes that use the processor: of stress-ng, or loops in Python."""

    def __init__(self, processes: int) -> None:
        self.processes = processes
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self) -> bool:
        """Starts them; False if they run already, or there are none."""
        if self._running or not self.processes:
            return False
        stress, loop = shutil.which("stress-ng"), [sys.executable, "-c", "while True: pass"]
        commands = [[stress, "--cpu", str(self.processes), "--quiet"]] if stress else [loop] * self.processes
        environment = {"PATH": os.environ.get("PATH", os.defpath)}  # without what marks processes of the installation
        self._running = [subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL) for command in commands]
        return True

    def stop(self) -> None:
        """Ends them."""
        for process in self._running:
            process.terminate()
        for process in self._running:
            process.wait()
        self._running = []
