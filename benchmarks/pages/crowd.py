"""How fast the server answers one more person while hundreds or thousands of connections to it are open."""

import json
import os
import statistics
import sys
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial
from subprocess import PIPE, Popen
from typing import IO, cast

import httpx

from benchmarks.pages.server import Server
from worker.store import accounts, database

_SECONDS = 10.0
_PAUSE = 0.1
_UNTIL_NOTICED = 16.0  # the server notices that a page was closed at its next message to it
_INCOMPLETE = "GET / HTTP/1.1\r\nHost: "
_PROCESSES = 4  # that open the connections
_ACCOUNTS = 40
_FIRST_UID = 50_000  # users of the machine that need not exist


@dataclass(frozen=True)
class Crowd:
    """Milliseconds until /healthz and the page Runs were answered, beside `connections` of a kind.

    `kept`: connections open at the end; `refused`: those answered with 429 or 503; `failed`: requests for /healthz or the page
    without an answer. `after_ms`: the page Runs, once the connections are closed.
    """

    kind: str
    connections: int
    kept: int
    refused: int
    failed: int
    healthz_p50_ms: float
    healthz_worst_ms: float
    page_p50_ms: float
    page_worst_ms: float
    after_ms: float


def measure(server: Server, run_id: str, incomplete: int, streams: list[int], from_accounts: list[int]) -> list[Crowd]:
    """Incomplete requests, then live streams of the run, then the stream that Gradio keeps for each open page.

    Last, live streams of 40 accounts; as root, each client process is then another user of the machine.
    """
    live = partial(_request, server, f"/api/runs/{run_id}/live")
    page = partial(_request, server, "/gradio_api/heartbeat/page")
    crowds = [_among(server, "incomplete requests", [_INCOMPLETE], incomplete)] if incomplete else []
    for count in streams:
        crowds += [_among(server, "live streams", [live()], count), _among(server, "open pages", [page()], count)]
    if from_accounts:
        with database.write() as session:
            tokens = [
                accounts.add(session=session, name=f"account-{number}", admin=False) for number in range(_ACCOUNTS)
            ]
        for count in from_accounts:
            crowds.append(_among(server, "streams of 40 accounts", [live(token) for token in tokens], count))
    return crowds


def _request(server: Server, path: str, token: str = "") -> str:
    host = server.address.removeprefix("http://")
    known = f"Authorization: Bearer {token}\r\n" if token else ""
    return f"GET {path} HTTP/1.1\r\nHost: {host}\r\nAccept: text/event-stream\r\n{known}\r\n"


def _among(server: Server, kind: str, requests: list[str], count: int) -> Crowd:
    """Opens connections that send these requests in turn, and asks beside them."""
    crowd = []
    for number in range(_PROCESSES):
        sent = [requests[index % len(requests)] for index in range(number, count, _PROCESSES)]
        uid = _FIRST_UID + number if len(requests) > 1 and os.geteuid() == 0 else None
        order = json.dumps({"address": server.address, "requests": sent, "uid": uid})
        holder = Popen([sys.executable, "-m", "benchmarks.pages.holder"], stdin=PIPE, stdout=PIPE, text=True, bufsize=1)
        crowd.append((holder, cast("IO[str]", holder.stdin), cast("IO[str]", holder.stdout)))
        crowd[-1][1].write(f"{order}\n")
    for _, _, told in crowd:
        told.readline()
    for _, orders, _ in crowd:
        orders.write("open\n")
    healthz, page, failed = _asked(server)
    for _, orders, _ in crowd:
        orders.write("close\n")
    outcomes: Counter[str] = sum((Counter(json.loads(told.readline())) for _, _, told in crowd), Counter())
    for holder, _, _ in crowd:
        holder.communicate()
    began = time.monotonic()
    httpx.get(f"{server.address}/", timeout=60).raise_for_status()
    after = (time.monotonic() - began) * 1000
    time.sleep(_UNTIL_NOTICED)
    times = (statistics.median(healthz), max(healthz), statistics.median(page), max(page), after)
    return Crowd(kind, count, outcomes["kept"], outcomes["refused"], failed, *times)


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
