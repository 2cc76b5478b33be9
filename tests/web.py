"""The web application for tests: in this process with a client, or as a server process for a browser."""

import atexit
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from environment import use
from fastapi import FastAPI
from starlette.testclient import TestClient

from worker.settings import Settings, get_settings
from worker.store import database

ADDRESS = "http://127.0.0.1:7860"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
CHROMIUM_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
LIVE_ONLY = """new MutationObserver((_, observer) => {
  const first = document.getElementById("first-drawing");
  if (document.readyState !== "loading") observer.disconnect();
  first?.remove();
}).observe(document, { childList: true, subtree: true })"""
"""Removes the first drawing of a page (tests/app/web/test_first_drawing.py), so that a test finds each element once."""
SAYS_MS = 90_000  # on a busy machine of two cores, a page can take longer than the usual 30 s
IN_BROWSER = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (Debian: apt-get install chromium)"),
]


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


@contextmanager
def server(data_dir: Path, **settings: str) -> Iterator[Served]:
    """A server process on a free port, with other settings of an installation beside its folder."""
    port = _free_port()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LATHE_")}
    environment |= {"LATHE_DATA_DIR": str(data_dir), "LATHE_PORT": str(port)}
    environment |= {f"LATHE_{name}": value for name, value in settings.items()}
    log = data_dir.parent / "web.log"
    with log.open("wb") as output:
        process = subprocess.Popen([sys.executable, "-m", "app.server"], env=environment, stdout=output, stderr=output)
        try:
            _wait_for(f"http://127.0.0.1:{port}/healthz", process, log)
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


def becomes_live(page: Any) -> None:
    """Waits until all handlers that fill the page have ended. A user cannot click before, since the first drawing is in its place;
    a test could, and the last handler would undo what it did."""
    page.wait_for_function("performance.getEntriesByName('lathe-live').length > 0")


def says(page: Any, selector: str, *words: str) -> None:
    """Waits until the element contains all words; after the time limit, fails with what the page shows instead."""
    for word in words:
        try:
            page.locator(selector, has_text=word).first.wait_for(timeout=SAYS_MS)
        except Exception as error:
            shown = page.evaluate("document.body.innerText + '\\nhidden: ' + document.body.textContent.slice(0, 3000)")
            raise AssertionError(
                f"{page.url}: {word!r} did not appear in {selector}; the page shows:\n{shown}"
            ) from error


def _wait_for(address: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"the web server did not start: {log.read_text()}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def field(page, name):
    """The input of a setting on New run, in its opened group."""
    reveal(page, name)
    return page.locator(f"#setting-{name} textarea, #setting-{name} input").first


def reveal(page, name):
    """Opens the group of a setting on New run."""
    page.wait_for_function("window.lathe?.reveal && document.querySelector('.group .fold')")
    page.evaluate("name => lathe.reveal(name)", name)
