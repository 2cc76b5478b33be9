"""The same live run in TensorBoard, where it is installed: viewers ask for its loss once a second, as its page does on reload."""

import asyncio
import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx

from benchmarks.pages.server import Server, free_port, started
from benchmarks.pages.viewers import Watched

_TAGS = ("loss", "learning_rate", "grad_norm", "tokens_per_second", "tokens", "epoch")
_STEPS = 3000


def measure(folder: Path, viewers: int, seconds: float) -> list[Watched]:
    """TensorBoard's figures; empty if it is not installed."""
    if find_spec("tensorboard") is None:
        return []
    logs = folder / "tensorboard"
    writer = _Writer(logs)
    for step in range(_STEPS):
        writer.add(step)
    port = free_port()
    arguments = ["--logdir", str(logs), "--port", str(port), "--reload_interval", "1", "--load_fast", "false"]
    command = [sys.executable, "-m", "tensorboard.main", *arguments, "--samples_per_plugin", "scalars=5000"]
    with started(command, f"http://127.0.0.1:{port}", "/data/runs", dict(os.environ)) as server:
        time.sleep(5)
        return [asyncio.run(_watch(server, writer, viewers, seconds))]


class _Writer:
    """Writes a run's scalars as transformers' callback does."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer: Any = EventFileWriter(str(folder))

    def add(self, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=tag, simple_value=1.0 / (step + 1)) for tag in _TAGS]
        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))
        self._writer.flush()


async def _watch(server: Server, writer: _Writer, viewers: int, seconds: float) -> Watched:
    stored: dict[int, float] = {}
    delays: list[float] = []
    received: list[int] = []

    async def viewer(client: httpx.AsyncClient, until: float) -> None:
        seen = _STEPS - 1
        while time.monotonic() < until:
            began = time.monotonic()
            for tag in _TAGS:
                query = {"tag": tag, "run": "."}
                answer = await client.get(f"{server.address}/data/plugin/scalars/scalars", params=query, timeout=60)
                received.append(int(answer.headers.get("content-length", len(answer.content))))
                if tag == "loss" and answer.status_code == 200:
                    last = int(answer.json()[-1][1])
                    now = time.monotonic()
                    delays.extend(now - stored[step] for step in range(seen + 1, last + 1) if step in stored)
                    seen = max(seen, last)
            await asyncio.sleep(max(0.0, 1 - (time.monotonic() - began)))

    async with httpx.AsyncClient(limits=httpx.Limits(max_connections=viewers + 5)) as client:
        used, began = server.cpu_seconds(), time.monotonic()
        tasks = [asyncio.create_task(viewer(client, began + seconds)) for _ in range(viewers)]
        step = _STEPS
        while time.monotonic() - began < seconds:
            writer.add(step)
            stored[step] = time.monotonic()
            step += 1
            await asyncio.sleep(1)
        await asyncio.wait(tasks, timeout=60)
        share = (server.cpu_seconds() - used) / (time.monotonic() - began)
    return Watched.of("TensorBoard", viewers, seconds, delays, sum(received), share)
