"""How long each rank itself works in a step, before it waits for the others; names a rank that is slower than they are."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from training.ranks.node_facts import node_name
from training.reports.report import Report
from training.run_folder.events import Metrics, Note

T = TypeVar("T")

SLOW_FACTOR = 1.5
"""A rank is a straggler if its steps take longer than this times the median of the other ranks ..."""
LEAST_SECONDS = 0.02
"""... and at least this much longer ..."""
STEPS = 20
"""... in the median of this many steps."""


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
    found = []
    for rank, own in enumerate(seconds):
        others = median([*seconds[:rank], *seconds[rank + 1 :]])
        if own > SLOW_FACTOR * others and own - others > LEAST_SECONDS:
            found.append(Straggler(rank, own, others))
    return found


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
            self._name(stragglers([float(one) for one in every]), step)

    def _name(self, found: Sequence[Straggler], step: int) -> None:
        for slow in found:
            if slow.rank not in self._reported:
                self._reported.add(slow.rank)
                self._report.for_run(Note(message=_sentence(slow, self.nodes[slow.rank], step), level="warning"))


def _sentence(slow: Straggler, node: str, step: int) -> str:
    times = f"{slow.seconds:.2f} s against {slow.others:.2f} s a step"
    return (
        f"Rank {slow.rank} on node {node} is {slow.seconds / slow.others:.1f} times slower than the median of the ranks "
        f"({times} to load data and for the forward passes, steps {step - STEPS + 1:,} to {step:,}); all ranks wait for it. "
        "Check its GPU's clock and temperature, other programs on the node, and its disk."
    )
