"""How the engine's calls reach the stand-in: within this process, or as programs on the PATH."""

import json
import os
import socketserver
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from benchmarks.scale.cluster.stand_in import StandIn
from worker.engines.slurm import cluster

NAMES = ("sbatch", "squeue", "scancel", "scontrol", "sinfo")
_PROGRAM = """\
#!{python} -IS
import json, socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect({address!r})
text = "" if sys.stdin.isatty() else sys.stdin.read()
connection.sendall(json.dumps([[{name!r}, *sys.argv[1:]], text]).encode() + b"\\n")
code, out, error = json.loads(connection.makefile().readline())
sys.stdout.write(out)
sys.stderr.write(error)
sys.exit(code)
"""


@contextmanager
def inside(stand_in: StandIn) -> Iterator[None]:
    """Answers the engine's commands within this process; its own handling of exit codes and errors stays."""

    def run(argv: list[str], *, input: str = "", **_: Any) -> subprocess.CompletedProcess[str]:
        code, out, error = stand_in.run(argv, input)
        return subprocess.CompletedProcess(argv, code, out, error)

    with mock.patch.object(cluster, "subprocess", SimpleNamespace(run=run, TimeoutExpired=subprocess.TimeoutExpired)):
        yield


@contextmanager
def installed(stand_in: StandIn) -> Iterator[None]:
    """Puts programs with the names of Slurm's commands on the PATH. They hand their arguments over through a socket."""
    with tempfile.TemporaryDirectory(prefix="lathe-commands-") as name:
        folder, lock = Path(name), threading.Lock()

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                argv, text = json.loads(self.rfile.readline())
                with lock:  # the engine's thread waits meanwhile
                    self.wfile.write(json.dumps(stand_in.run(argv, text)).encode() + b"\n")

        with socketserver.ThreadingUnixStreamServer(str(folder / "socket"), Handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            for command in NAMES:
                text = _PROGRAM.format(python=sys.executable, address=str(folder / "socket"), name=command)
                (folder / command).write_text(text)
                (folder / command).chmod(0o700)
            with mock.patch.dict(os.environ, {"PATH": f"{folder}{os.pathsep}{os.environ.get('PATH', '')}"}):
                try:
                    yield
                finally:
                    server.shutdown()
