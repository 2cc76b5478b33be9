"""Servers that receive notifications, for tests: a webhook's and a mail server."""

import http.server
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.handlers import Message as MessageHandler


@dataclass
class Hooks:
    """A web server that keeps what is posted to it, and answers with `statuses` one after the other, then with 200."""

    port: int = 0
    statuses: list[int] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/services/T00000000/B00000000/verysecretpart"

    @property
    def documents(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, _, body in self.requests]


@contextmanager
def hooks() -> Iterator[Hooks]:
    """A running webhook receiver."""
    kept = Hooks()

    class Receiver(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            with kept.lock:
                kept.requests.append((self.path, dict(self.headers), body))
                status = kept.statuses.pop(0) if kept.statuses else 200
            self.send_response(status)
            for name, value in kept.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(b"said by the receiver")

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        kept.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield kept
        server.shutdown()
        thread.join()


@dataclass
class Mailbox:
    """A mail server's port and what it received."""

    port: int = 0
    messages: list[Message] = field(default_factory=list)


@contextmanager
def mailbox(refused: str = "") -> Iterator[Mailbox]:
    """A running mail server on loopback; it refuses the recipient `refused`."""
    kept = Mailbox()

    class Keeper(MessageHandler):
        def handle_message(self, message: Message) -> None:
            kept.messages.append(message)

        async def handle_RCPT(self, server, session, envelope, address, options):  # noqa: N802 - the library's name
            if address == refused:
                return "550 no such mailbox"
            envelope.rcpt_tos.append(address)
            return "250 OK"

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        kept.port = probe.getsockname()[1]
    controller = Controller(Keeper(), hostname="127.0.0.1", port=kept.port)
    controller.start()
    try:
        yield kept
    finally:
        controller.stop()
