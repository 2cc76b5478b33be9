"""Many viewers of one live run, by the same push that its page uses."""

import asyncio
import json
import statistics
import threading
import time
from dataclasses import dataclass

import httpx

from benchmarks.pages import fill
from benchmarks.pages.server import Server


@dataclass(frozen=True)
class Watched:
    """What watching a live run costs: delay from storing a step to receiving it, kB per viewer and second, share of a core."""

    program: str
    viewers: int
    p50_ms: float
    p95_ms: float
    kb_per_second: float
    core_share: float

    @classmethod
    def of(
        cls, program: str, viewers: int, seconds: float, delays: list[float], received: float, share: float
    ) -> "Watched":
        """The figures from the delays in seconds and the bytes that all viewers received together."""
        return cls(
            program=program,
            viewers=viewers,
            p50_ms=statistics.median(delays) * 1000,
            p95_ms=statistics.quantiles(delays, n=20)[-1] * 1000,
            kb_per_second=received / viewers / seconds / 1000,
            core_share=share,
        )


def watch(server: Server, run_id: str, viewers: int, seconds: float) -> Watched:
    """Stores a step each second, and measures when each viewer has it."""
    delays, received = asyncio.run(_watch(server, run_id, viewers, seconds))
    share = received.pop()
    return Watched.of("Lathe", viewers, seconds, delays, sum(received), share)


async def _watch(server: Server, run_id: str, viewers: int, seconds: float) -> tuple[list[float], list[float]]:
    stored: dict[int, float] = {}
    delays: list[float] = []
    received: list[float] = []
    first = 1_000_000  # beyond the steps that the background training stores

    async def viewer(client: httpx.AsyncClient) -> None:
        total = 0.0
        async with client.stream("GET", f"{server.address}/api/runs/{run_id}/live", timeout=None) as answer:
            async for line in answer.aiter_lines():
                total += len(line.encode()) + 1
                if line.startswith("data:"):
                    _note(json.loads(line[5:]), stored, delays)
                if stop.is_set():
                    break
        received.append(total)

    stop = threading.Event()
    limits = httpx.Limits(max_connections=viewers + 5)
    async with httpx.AsyncClient(limits=limits) as client:
        tasks = [asyncio.create_task(viewer(client)) for _ in range(viewers)]
        await asyncio.sleep(3)
        used, began = server.cpu_seconds(), time.monotonic()
        step = first
        while time.monotonic() - began < seconds:
            await asyncio.to_thread(fill.add_step, run_id, step)
            stored[step] = time.monotonic()
            step += 1
            await asyncio.sleep(1)
        share = (server.cpu_seconds() - used) / (time.monotonic() - began)
        stop.set()
        await asyncio.to_thread(fill.add_step, run_id, step)
        await asyncio.wait(tasks, timeout=10)
        for task in tasks:
            task.cancel()
    return delays, [*received, share]


def _note(news: dict[str, object], stored: dict[int, float], delays: list[float]) -> None:
    facts = news.get("facts")
    words = facts.get("step") if isinstance(facts, dict) else None  # "3,001 of 100,000"
    step = int(words.split(" ")[0].replace(",", "")) if isinstance(words, str) and words[:1].isdigit() else None
    if step in stored:
        delays.append(time.monotonic() - stored[step])
