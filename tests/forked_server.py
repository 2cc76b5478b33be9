"""Web servers as processes, forked from one that has imported the application: importing takes six of a server's seven seconds."""

import contextlib
import multiprocessing
import os
import socket
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from paths import ROOT, TESTS
from patience import ended, eventually
from web import free_port, server_variables

from worker.settings import get_settings


class Forked:
    """A forked process, with the methods of `subprocess.Popen` that waits need."""

    def __init__(self, process: Any) -> None:
        self._process = process
        self.pid: int = process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    poll = returncode.fget

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()


@dataclass(frozen=True)
class Served:
    """A server: its address, process and output."""

    address: str
    process: Forked
    log: Path

    @property
    def host(self) -> str:
        """Host and port, as in a request's header."""
        return self.address.removeprefix("http://")

    def connect(self, sent: bytes = b"") -> socket.socket:
        """A connection on which this was sent, with the server's host and port in the place of HOST."""
        host, port = self.host.split(":")
        connection = socket.create_connection((host, int(port)))
        connection.sendall(sent.replace(b"HOST", self.host.encode()))
        return connection


@contextmanager
def server(data_dir: Path, **settings: str) -> Iterator[Served]:
    """A server on a free port, with other settings of an installation beside its folder."""
    port = free_port()
    log = data_dir.parent / "web.log"
    started = _context().Process(target=_serve, args=(server_variables(data_dir, port, settings), log))
    started.start()
    served = Served(f"http://127.0.0.1:{port}", Forked(started), log)
    try:
        eventually(lambda: _answers(served))
        yield served
    finally:
        served.process.kill()
        ended(served.process)


def imported() -> set[str]:
    """The modules that a server has imported when it starts."""
    receiving, sending = _context().Pipe(duplex=False)
    process = _context().Process(target=_tell_imported, args=(sending,))
    process.start()
    names: set[str] = receiving.recv()
    process.join()
    return names


@cache
def _context() -> Any:
    """Starts the process that forks servers; it ends with this one."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["forked_server_preload"])
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(TESTS / "programs"), *filter(None, sys.path)]))
        multiprocessing.forkserver.ensure_running()
    return context


def _tell_imported(sending: Any) -> None:
    sending.send(set(sys.modules))


def _serve(environment: dict[str, str], log: Path) -> None:
    os.environ.clear()
    os.environ.update(environment)
    get_settings.cache_clear()
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    from app.server import main

    main()


def _answers(served: Served) -> bool:
    assert served.process.poll() is None, f"the web server did not start: {served.log.read_text()}"
    with contextlib.suppress(OSError), urllib.request.urlopen(f"{served.address}/healthz", timeout=5):
        return True
    return False
