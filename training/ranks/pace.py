"""How long each rank itself works in a step, before it waits for the others; names a rank that is slower than they are, and one
that has stopped while they wait for it, long before their collective times out."""

import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from statistics import median
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from training.ranks.node_check import node_name
from training.reports.report import Report
from training.run_folder.events import Metrics, Note

T = TypeVar("T")

SLOW_FACTOR = 1.5
"""A rank is a straggler if its steps take longer than this times the median of the other ranks ..."""
LEAST_SECONDS = 0.02
"""... and at least this much longer ..."""
STEPS = 20
"""... in the median of this many steps."""
HANG_SECONDS = 60.0
"""A rank hangs if it makes no progress for this long ..."""
LONGEST_TIMES = 5.0
"""... and for this many times the longest time that the run took between two batches so far."""
LOOK_SECONDS = 5.0
_WATCHED = "training"  # in other phases one rank may work while the others wait


class Pace:
    """The seconds that this rank works by itself in each step: loading its batches, and the forward passes.

    Every rank waits for the others in the backward pass, so its duration shows the slowest rank on all of them. `moves` counts
    batches and forward passes, of all ranks equally.
    """

    def __init__(self, device: torch.device) -> None:
        self.step, self.moves = 0, 0
        self._on_gpu, self._active = device.type == "cuda", False
        self.begin(0, active=False)

    def begin(self, step: int, *, active: bool) -> None:
        """Starts anew after `step`; measures nothing unless `active`."""
        self.step, self._active = step, active
        self._host = 0.0
        self._events: list[tuple[Any, Any]] = []
        self._steps: list[tuple[float, list[tuple[Any, Any]]]] = []

    def loading(self, batches: Iterator[T]) -> Iterator[T]:
        """The batches, with the time that they take to load."""
        while True:
            began = time.perf_counter()
            try:
                batch = next(batches)
            except StopIteration:
                return
            self._host += time.perf_counter() - began
            self.moves += 1
            yield batch

    @contextmanager
    def forward(self) -> Iterator[None]:
        """A context for the forward pass of a micro batch. On a GPU it is timed there, without synchronizing with it."""
        if not self._active:
            yield
        elif self._on_gpu:
            events: tuple[Any, Any] = _gpu_event(), _gpu_event()
            events[0].record()
            yield
            events[1].record()
            self._events.append(events)
        else:
            began = time.perf_counter()
            yield
            self._host += time.perf_counter() - began
        self.moves += 1

    def end_step(self, step: int) -> None:
        """Ends the step."""
        self.step = step
        self._steps.append((self._host, self._events))
        self._host, self._events = 0.0, []

    @property
    def steps(self) -> int:
        """Steps since the last `take`."""
        return len(self._steps)

    def take(self) -> float:
        """Returns the median of the seconds of a step since the last call; waits for the GPU."""
        if self._on_gpu:
            torch.cuda.synchronize()
        seconds = [host + sum(begin.elapsed_time(end) for begin, end in events) / 1000 for host, events in self._steps]
        self._steps = []
        return float(median(seconds))


def _gpu_event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Straggler:
    """A slow rank: its seconds of a step, and the median of the other ranks'."""

    rank: int
    seconds: float
    others: float


def stragglers(seconds: Sequence[float]) -> list[Straggler]:
    """The ranks that are slower than the others, from each rank's seconds of a step."""
    slow = []
    for rank, own in enumerate(seconds):
        others = median([*seconds[:rank], *seconds[rank + 1 :]])
        if own > SLOW_FACTOR * others and own - others > LEAST_SECONDS:
            slow.append(Straggler(rank, own, others))
    return slow


class PaceComparison:
    """Compares the pace of all ranks every STEPS steps; each slow rank is reported once."""

    def __init__(self, pace: Pace, report: Report, group: Any) -> None:
        self._pace, self._report, self._group = pace, report, group
        self._reported: set[int] = set()
        self.nodes: list[str] = [""] * dist.get_world_size()
        dist.all_gather_object(self.nodes, node_name(), group=group)

    def after_step(self, step: int) -> None:
        """Every rank calls it after each step."""
        self._pace.end_step(step)
        if self._pace.steps == STEPS:
            own = self._pace.take()
            self._report.for_rank(Metrics(step=step, rank=self._report.rank, values={"own_seconds": own}))
            every = [torch.zeros(1, dtype=torch.float64) for _ in self.nodes]
            dist.all_gather(every, torch.tensor([own], dtype=torch.float64), group=self._group)
            for slow in stragglers([float(seconds) for seconds in every]):
                if slow.rank not in self._reported:
                    self._reported.add(slow.rank)
                    self._report.warn(_sentence(slow, self.nodes[slow.rank], step))


def _sentence(slow: Straggler, node: str, step: int) -> str:
    times = f"{slow.seconds:.2f} s against {slow.others:.2f} s a step"
    return (
        f"Rank {slow.rank} on node {node} is {slow.seconds / slow.others:.1f} times slower than the median of the ranks "
        f"({times} to load data and for the forward passes, steps {step - STEPS + 1:,} to {step:,}); all ranks wait for it. "
        "Check its GPU's clock and temperature, other programs on the node, and its disk."
    )


Position = tuple[int, int, str]
"""Of a rank: batches and forward passes so far, the last step, and its phase."""


class HangWatch(threading.Thread):
    """A thread of each rank. It stores the rank's position at the process group's store, and if the rank stands still, reads all.

    The store answers although the ranks wait in a collective; a rank that was stopped leaves its last position there.
    """

    def __init__(self, pace: Pace, report: Report, store: Any, nodes: Sequence[str]) -> None:
        super().__init__(name="hang watch", daemon=True)
        self._pace, self._report, self._store, self._nodes = pace, report, store, nodes
        self._ended = threading.Event()
        self._longest = 0.0
        self._named = False

    def run(self) -> None:
        """Looks every few seconds, until `end` or the end of the store."""
        last, since = None, time.monotonic()
        while not self._ended.wait(LOOK_SECONDS):
            position, now = (self._pace.moves, self._pace.step, self._report.phase), time.monotonic()
            try:
                if position != last:
                    self._longest = max(self._longest, now - since if last else 0.0)
                    last, since, self._named = position, now, False
                    self._store.set(str(self._report.rank), json.dumps(position))
                elif now - since > max(HANG_SECONDS, LONGEST_TIMES * self._longest) and not self._named:
                    self._named = self._report_hung(self._positions(), now - since)
            except (RuntimeError, OSError):  # the store has ended, and with it the run
                return

    def end(self) -> None:
        """Ends the thread; returns at once."""
        self._ended.set()

    def _positions(self) -> dict[int, Position]:
        keys = {rank: str(rank) for rank in range(len(self._nodes))}
        return {rank: tuple(json.loads(self._store.get(key))) for rank, key in keys.items() if self._store.check([key])}

    def _report_hung(self, positions: Mapping[int, Position], seconds: float) -> bool:
        """Reports the ranks that the others wait for. False if there are none."""
        hung = behind(positions)
        # One of the waiting ranks speaks for all.
        if hung and self._report.rank == next(rank for rank in sorted(positions) if rank not in hung):
            for rank in hung:
                message = (
                    f"Rank {rank} on node {self._nodes[rank]} has made no progress in step {positions[rank][1] + 1:,} for "
                    f"{seconds:.0f} s, and the other ranks wait for it. See what it does: py-spy dump on its process; check its "
                    "GPU (dmesg), its disk and the files that it reads."
                )
                self._report.for_rank(Note(message=message, level="warning"))
        return bool(hung)


def behind(positions: Mapping[int, Position]) -> list[int]:
    """The ranks that have not come as far as the others, which therefore wait; none if one of them may do other work."""
    if not positions:
        return []
    furthest = max(moves for moves, _, _ in positions.values())
    late = [rank for rank, (moves, _, _) in sorted(positions.items()) if moves < furthest]
    return late if all(positions[rank][2] == _WATCHED for rank in late) else []


def watch(pace: Pace, report: Report, nodes: Sequence[str]) -> HangWatch:
    """Starts the watch of this rank; the process group must exist."""
    import torch.distributed as dist

    distributed = dist.distributed_c10d
    # A connection of its own: the rank's may be waiting for an answer.
    own: Any = distributed._get_default_store()
    store = distributed.PrefixStore("hang watch", own.clone())
    store.set_timeout(timedelta(seconds=HANG_SECONDS))
    started = HangWatch(pace, report, store, nodes)
    started.start()
    return started
