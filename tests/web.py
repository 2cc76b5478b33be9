"""The web application for tests: in this process with a client, or as a server process."""

import atexit
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from environment import use
from fastapi import FastAPI
from patience import QUIET_SECONDS, eventually
from starlette.testclient import TestClient

from worker.settings import Settings, get_settings
from worker.store import database

ADDRESS = "http://127.0.0.1:7860"


@cache
def application(**settings: object) -> FastAPI:
    """The application with these settings; created once, since Gradio starts slowly. It uses the test's database."""
    from app.server import create_app

    folder = Path(tempfile.mkdtemp(prefix="lathe-web-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return create_app(Settings.model_validate({"data_dir": folder, **settings}))


@dataclass(frozen=True)
class Served:
    """A server: its address, process and output."""

    address: str
    process: "subprocess.Popen[bytes]"
    log: Path


def client(address: str = ADDRESS, **settings: object) -> TestClient:
    """A client of the application with the server's token, at the address that a browser would have."""
    from app.access.server_token import server_token

    app = application(**settings)
    os.environ["GRADIO_TEMP_DIR"] = str(app.state.uploads)  # of the application created last in this process
    token = server_token(app.state.settings)
    return TestClient(app, base_url=address, headers={"Authorization": f"Bearer {token}"})


def account(name: str, *, admin: bool = False) -> dict[str, str]:
    """The headers of a new account."""
    from worker.store import accounts, database

    with database.write() as session:
        return {"Authorization": f"Bearer {accounts.add(session=session, name=name, admin=admin)}"}


def server_variables(data_dir: Path, port: int, settings: dict[str, str]) -> dict[str, str]:
    """This process's environment, with only these LATHE_ variables."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("LATHE_")}
    own = {"DATA_DIR": str(data_dir), "PORT": str(port)} | settings
    return inherited | {f"LATHE_{name}": value for name, value in own.items()}


@contextmanager
def server(data_dir: Path, **settings: str) -> Iterator[Served]:
    """A server process on a free port, with other settings of an installation beside its folder."""
    port = free_port()
    variables = server_variables(data_dir, port, settings)
    log = data_dir.parent / "web.log"
    with log.open("wb") as output:
        process = subprocess.Popen([sys.executable, "-m", "app.server"], env=variables, stdout=output, stderr=output)
        try:
            wait_for(f"http://127.0.0.1:{port}/healthz", process, log)
            yield Served(f"http://127.0.0.1:{port}", process, log)
        finally:
            process.kill()
            process.wait()


@contextmanager
def site(home: Path) -> Iterator[Served]:
    """A server with a new database in `home`."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        use(monkeypatch, DATA_DIR=str(home))
        database.migrate()
        database.dispose()
    get_settings.cache_clear()
    with server(home) as served:
        yield served


def wait_for(address: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    """Waits until the server at the address answers."""

    def answers() -> bool:
        if process.poll() is not None:
            raise RuntimeError(f"the web server did not start: {log.read_text()}")
        try:
            with urllib.request.urlopen(address, timeout=QUIET_SECONDS):
                return True
        except OSError:
            return False

    eventually(answers, [process], every=0.1)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
