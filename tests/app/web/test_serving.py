"""The web server as a process: how it starts, and how it ends."""

import signal

import pytest
from forked_server import server
from patience import ended, eventually

pytestmark = pytest.mark.slow


@pytest.fixture
def served(home):
    with server(home) as started:
        yield started


def test_an_interrupted_upload_leaves_no_file(served, home):
    head = (
        "POST /gradio_api/upload HTTP/1.1\r\nHost: HOST\r\n"
        "Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 100000\r\n\r\n"
        '--x\r\nContent-Disposition: form-data; name="files"; filename="a.jsonl"\r\n\r\nhalf a row'
    )
    uploads = home / "uploads"
    with served.connect(head.encode()):
        eventually(lambda: any(path.name.startswith("tmp") for path in uploads.rglob("*")))
    eventually(lambda: not any(path.is_file() for path in uploads.rglob("*")))


def test_an_open_page_does_not_delay_the_shutdown(served):
    with served.connect(b"GET /gradio_api/heartbeat/page HTTP/1.1\r\nHost: HOST\r\n\r\n") as page:
        assert page.recv(64).startswith(b"HTTP/1.1 200")
        served.process.send_signal(signal.SIGTERM)
        assert ended(served.process) in (0, -signal.SIGTERM)
    assert served.log.read_text() == ""
