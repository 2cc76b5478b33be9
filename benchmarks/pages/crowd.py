"""How fast the server answers one more person while hundreds of connections to it are open."""

import asyncio
import contextlib
import statistics
import time
from dataclasses import dataclass

import httpx

from app.web.connections import allow_many_sockets
from benchmarks.pages.server import Server

_SECONDS = 10.0
_PAUSE = 0.1
_UNTIL_NOTICED = 16.0  # the server notices that a page was closed at its next message to it
_INCOMPLETE = b"GET / HTTP/1.1\r\nHost: "


@dataclass(frozen=True)
class Crowd:
    """Milliseconds until /healthz and the page Runs were answered, beside `connections` of a kind.

    `kept`: connections open at the end; `failed`: requests for /healthz or the page without an answer.
    """

    kind: str
    connections: int
    kept: int
    failed: int
    healthz_p50_ms: float
    healthz_worst_ms: float
    page_p50_ms: float
    page_worst_ms: float


def measure(server: Server, run_id: str, incomplete: int, streams: list[int]) -> list[Crowd]:
    """Incomplete requests, then live streams of the run, then the stream that Gradio keeps for each open page."""
    allow_many_sockets()
    crowds = [asyncio.run(_among(server, "incomplete requests", _INCOMPLETE, incomplete))] if incomplete else []
    for count in streams:
        for kind, path in (("live streams", f"/api/runs/{run_id}/live"), ("open pages", "/gradio_api/heartbeat/page")):
            crowds.append(asyncio.run(_among(server, kind, _request(server, path), count)))
    return crowds


def _request(server: Server, path: str) -> bytes:
    host = server.address.removeprefix("http://")
    return f"GET {path} HTTP/1.1\r\nHost: {host}\r\nAccept: text/event-stream\r\n\r\n".encode()


async def _among(server: Server, kind: str, sent: bytes, count: int) -> Crowd:
    host, _, port = server.address.removeprefix("http://").partition(":")
    leaving = asyncio.Event()
    kept = 0

    async def hold() -> None:
        nonlocal kept
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(sent)
            reading = asyncio.ensure_future(_read(reader))
            await asyncio.wait((reading, asyncio.ensure_future(leaving.wait())), return_when=asyncio.FIRST_COMPLETED)
            kept += not reading.done()
            reading.cancel()
            writer.close()

    probes = asyncio.create_task(asyncio.to_thread(_asked, server))
    crowd = [asyncio.create_task(hold()) for _ in range(count)]
    healthz, page, failed = await probes
    leaving.set()
    await asyncio.wait(crowd, timeout=_SECONDS)
    await asyncio.sleep(_UNTIL_NOTICED)
    return Crowd(
        kind, count, kept, failed, statistics.median(healthz), max(healthz), statistics.median(page), max(page)
    )


async def _read(reader: asyncio.StreamReader) -> None:
    """Reads until the server closes the connection or refuses the request."""
    if (await reader.read(65536)).startswith((b"HTTP/1.1 4", b"HTTP/1.1 5")):
        return
    while await reader.read(65536):
        pass


def _asked(server: Server) -> tuple[list[float], list[float], int]:
    """The milliseconds of each request, on a new connection each, and how many failed."""
    healthz: list[float] = []
    page: list[float] = []
    failed = 0
    end = time.monotonic() + _SECONDS
    while time.monotonic() < end:
        for path, own in (("/healthz", healthz), ("/", page)):
            began = time.monotonic()
            try:
                httpx.get(f"{server.address}{path}", timeout=60).raise_for_status()
            except httpx.HTTPError:
                failed += 1
            own.append((time.monotonic() - began) * 1000)
        time.sleep(_PAUSE)
    return healthz, page, failed
