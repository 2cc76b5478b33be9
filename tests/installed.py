"""An installation of Lathe from its wheel, in an environment of its own outside a checkout."""

import contextlib
import os
import re
import signal
import subprocess
import sysconfig
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from patience import ended, eventually

from worker.machine import processes


@dataclass(frozen=True)
class Installation:
    """A virtual environment with the wheel, and a working folder outside a checkout."""

    environment: Path
    folder: Path

    @property
    def site_packages(self) -> Path:
        return Path(sysconfig.get_path("purelib", "venv", {"base": str(self.environment)}))

    def command(self, name: str, *arguments: str) -> list[str]:
        return [str(self.environment / "bin" / name), *arguments]

    @property
    def variables(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("LATHE_", "PYTHON"))}
        ours = {"LATHE_DATA_DIR": str(self.folder / "data"), "LATHE_PORT": "0", "LATHE_DEVICES": "cpu"}
        # Spinning threads make training many times slower if other tests use the same cores.
        return inherited | ours | {"OMP_WAIT_POLICY": "PASSIVE"}

    def run(self, name: str, *arguments: str) -> str:
        """Runs a program that must succeed, and returns its output."""
        done = subprocess.run(
            self.command(name, *arguments),
            env=self.variables,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    def files(self) -> set[str]:
        """The files of the environment, without compiled modules."""
        return {str(path) for path in self.site_packages.rglob("*") if path.is_file() and path.suffix != ".pyc"}


@contextlib.contextmanager
def up(installation: Installation) -> Iterator[str]:
    """A context that runs `lathe up` and ends it with Ctrl-C. Yields its address."""
    output = installation.folder / "up.txt"
    with output.open("wb") as file:
        started = subprocess.Popen(
            installation.command("lathe", "up"),
            env=installation.variables,
            cwd=installation.folder,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )

    def address() -> str | None:
        assert started.poll() is None, output.read_text()
        match = re.search(r"^Lathe is running at (\S+)$", output.read_text(), re.MULTILINE)
        return match[1] if match else None

    try:
        yield eventually(address)
        started.send_signal(signal.SIGINT)
        assert ended(started) == 0, output.read_text()
    finally:
        processes.kill_tree(started.pid)
        started.wait()


def fetch(address: str) -> bytes:
    with urllib.request.urlopen(address) as answer:
        return bytes(answer.read())
