"""The web server as a process: how it starts, and how it ends."""

import signal
import socket
import time
from collections.abc import Callable

import pytest
from web import Served, server

pytestmark = pytest.mark.slow


@pytest.fixture
def served(home):
    with server(home) as started:
        yield started


def connect(served: Served) -> socket.socket:
    host, port = served.address.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=10)


def wait(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 15
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_an_interrupted_upload_leaves_no_file(served, home):
    head = (
        f"POST /gradio_api/upload HTTP/1.1\r\nHost: {served.address.removeprefix('http://')}\r\n"
        "Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 100000\r\n\r\n"
        '--x\r\nContent-Disposition: form-data; name="files"; filename="a.jsonl"\r\n\r\nhalf a row'
    )
    uploads = home / "uploads"
    with connect(served) as connection:
        connection.sendall(head.encode())
        wait(lambda: any(path.name.startswith("tmp") for path in uploads.rglob("*")))
    wait(lambda: not any(path.is_file() for path in uploads.rglob("*")))


def test_an_open_page_does_not_delay_the_shutdown(served):
    with connect(served) as page:
        host = served.address.removeprefix("http://")
        page.sendall(f"GET /gradio_api/heartbeat/page HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        assert page.recv(64).startswith(b"HTTP/1.1 200")
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(timeout=30) in (0, -signal.SIGTERM)
    assert served.log.read_text() == ""
