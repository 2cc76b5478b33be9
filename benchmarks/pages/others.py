"""The same live run in TensorBoard and Trackio, where installed: their pages, and viewers that ask for the same once a second."""

import asyncio
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import httpx

from benchmarks.pages.server import Server, free_port, started
from benchmarks.pages.viewers import Watched

_TAGS = ("loss", "learning_rate", "grad_norm", "tokens_per_second", "tokens", "epoch")
_STEPS = 3000


class Program(Protocol):
    """A program that shows a run."""

    name: str
    ready: str
    """The path that answers when the program works."""
    plot: str
    """The selector of the first plot on its page."""

    def command(self, port: int) -> list[str]:
        """Starts its server."""

    def add(self, first: int, end: int) -> None:
        """Stores steps [first, end) of the run."""

    async def ask(self, client: httpx.AsyncClient, address: str) -> tuple[int, int]:
        """What its page asks for once a second: the bytes of the answers, and the last step in them (-1: none)."""


@contextmanager
def served(folder: Path, wanted: bool) -> Iterator[list[tuple[Program, Server]]]:
    """The programs that are installed, with a run of 3,000 steps; none if they are not wanted."""
    kinds: dict[str, Callable[[Path], Program]] = {"tensorboard": TensorBoard, "trackio": Trackio}
    programs = [kind(folder) for module, kind in kinds.items() if wanted and find_spec(module)]
    with ExitStack() as stack:
        running = []
        for program in programs:
            program.add(0, _STEPS)
            port = free_port()
            command, address = program.command(port), f"http://127.0.0.1:{port}"
            running.append((program, stack.enter_context(started(command, address, program.ready, dict(os.environ)))))
        yield running


def watch(program: Program, server: Server, viewers: int, seconds: float) -> Watched:
    """Stores a step each second, and measures when each viewer has it."""
    return asyncio.run(_watch(server, program, viewers, seconds))


class TensorBoard:
    """A run written as transformers' callback writes it."""

    name, ready, plot = "TensorBoard", "/data/runs", "line-chart canvas"

    def __init__(self, folder: Path) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._logs = folder / "tensorboard"
        self._writer: Any = EventFileWriter(str(self._logs))

    def command(self, port: int) -> list[str]:
        """As `Program`."""
        options = ["--reload_interval", "1", "--load_fast", "false", "--samples_per_plugin", "scalars=5000"]
        return [sys.executable, "-m", "tensorboard.main", "--logdir", str(self._logs), "--port", str(port), *options]

    def add(self, first: int, end: int) -> None:
        """As `Program`."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        for step in range(first, end):
            values = [Summary.Value(tag=tag, simple_value=1.0 / (step + 1)) for tag in _TAGS]
            self._writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))
        self._writer.flush()

    async def ask(self, client: httpx.AsyncClient, address: str) -> tuple[int, int]:
        """As `Program`: one request a plot."""
        received, last = 0, -1
        for tag in _TAGS:
            query = {"tag": tag, "run": "."}
            answer = await client.get(f"{address}/data/plugin/scalars/scalars", params=query, timeout=60)
            received += int(answer.headers.get("content-length", len(answer.content)))
            if tag == "loss" and answer.status_code == 200:
                last = int(answer.json()[-1][1])
        return received, last


class Trackio:
    """A run in Trackio's own database."""

    name, ready, plot = "Trackio", "/version", ".vega-embed canvas"

    def __init__(self, folder: Path) -> None:
        os.environ["TRACKIO_DIR"] = str(folder / "trackio")  # read when Trackio is imported
        from trackio.sqlite_storage import SQLiteStorage

        self._storage: Any = SQLiteStorage

    def command(self, port: int) -> list[str]:
        """As `Program`."""
        show = f"import trackio; trackio.show('live', open_browser=False, block_thread=True, server_port={port})"
        return [sys.executable, "-c", show]

    def add(self, first: int, end: int) -> None:
        """As `Program`."""
        steps = range(first, end)
        values = [dict.fromkeys(_TAGS, 1.0 / (step + 1)) for step in steps]
        self._storage.bulk_log("live", "run", values, steps=list(steps))

    async def ask(self, client: httpx.AsyncClient, address: str) -> tuple[int, int]:
        """As `Program`."""
        body = {"project": "live", "runs": [{"run": "run"}]}
        answer = await client.post(f"{address}/api/get_logs_batch", json=body, timeout=60)
        found: Any = answer.json()
        logs = (found["data"] if isinstance(found, dict) else found)[0]["logs"]
        return len(answer.content), int(logs[-1]["step"])


async def _watch(server: Server, program: Program, viewers: int, seconds: float) -> Watched:
    stored: dict[int, float] = {}
    delays: list[float] = []
    received: list[int] = []

    async def viewer(client: httpx.AsyncClient, until: float) -> None:
        seen = _STEPS - 1
        while time.monotonic() < until:
            began = time.monotonic()
            size, last = await program.ask(client, server.address)
            received.append(size)
            now = time.monotonic()
            delays.extend(now - stored[step] for step in range(seen + 1, last + 1) if step in stored)
            seen = max(seen, last)
            await asyncio.sleep(max(0.0, 1 - (time.monotonic() - began)))

    async with httpx.AsyncClient(limits=httpx.Limits(max_connections=viewers + 5)) as client:
        used, began = server.cpu_seconds(), time.monotonic()
        tasks = [asyncio.create_task(viewer(client, began + seconds)) for _ in range(viewers)]
        step = _STEPS
        while time.monotonic() - began < seconds:
            await asyncio.to_thread(program.add, step, step + 1)
            stored[step] = time.monotonic()
            step += 1
            await asyncio.sleep(1)
        done, _ = await asyncio.wait(tasks, timeout=60)
        for task in done:
            task.result()
        share = (server.cpu_seconds() - used) / (time.monotonic() - began)
    return Watched.of(program.name, viewers, seconds, delays, sum(received), share)
