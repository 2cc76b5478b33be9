"""What a rank says of itself while it trains: phases, numbers, failures."""

import contextlib
import os
import resource
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from training import disk
from training.events import Event, EventWriter, Failed, Metrics, PhaseStarted, Progress, RankStarted
from training.failure import DataError, UserError, is_out_of_memory

if TYPE_CHECKING:
    from training.moments import Moments

EVENTS_FILE = "events.jsonl"
_LESS_MEMORY = (
    "Set on_out_of_memory to step_down, or micro_batch_size lower and gradient_accumulation_steps higher by as much; "
    "gradient_checkpointing, a shorter max_length or ZeRO take less memory too."
)
_SECONDS_BETWEEN_SAMPLES = 1.0


class Report:
    """A rank's voice. What concerns the whole run is said by rank 0 alone."""

    def __init__(self, run_dir: Path, rank: int) -> None:
        self.rank = rank
        self.phase = "starting"
        self.moments: Moments | None = None  # once there is a trainer
        self._run_dir = run_dir
        self._writer = EventWriter(run_dir / EVENTS_FILE)
        self._process = psutil.Process()
        self._sampled = 0.0

    def started(self, device: str) -> None:
        self._writer.write(RankStarted(rank=self.rank, pid=os.getpid(), device=device))

    def once(self, event: Event) -> None:
        """Writes `event` on rank 0; the other ranks keep quiet."""
        if self.rank == 0:
            self._writer.write(event)

    def each(self, event: Event) -> None:
        """Writes an event that every rank has one of."""
        self._writer.write(event)

    def enter(self, phase: str) -> None:
        self.phase = phase
        self.once(PhaseStarted(phase=phase))

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """A phase within another, which goes on afterwards."""
        before = self.phase
        self.enter(phase)
        yield
        self.enter(before)

    def progress(self, done: int, total: int = 0) -> None:
        """`total` 0 means that it is not known."""
        self.once(Progress(done=done, total=total))

    def memory(self, step: int, *, always: bool = False) -> None:
        """This rank's memory at a step, at most once a second unless asked for."""
        now = time.monotonic()
        if always or now - self._sampled >= _SECONDS_BETWEEN_SAMPLES:
            self._sampled = now
            self._writer.write(Metrics(step=step, rank=self.rank, values=self.memory_now()))

    def memory_now(self) -> dict[str, float | None]:
        """Bytes: host memory of the process, and on a GPU what torch has allocated, reserved and had at its peak.

        Under a memory limit on CPU it is live storages that are allocated.
        """
        import torch

        from training.memory_limit import counter

        values: dict[str, float | None] = {"host_rss": self._process.memory_info().rss}
        if torch.cuda.is_available():
            values["memory_allocated"] = torch.cuda.memory_allocated()
            values["memory_reserved"] = torch.cuda.memory_reserved()
            values["memory_peak"] = torch.cuda.max_memory_allocated()
        elif counting := counter():
            values |= {"memory_allocated": counting.current, "memory_peak": counting.peak}
        return values

    def failed(self, error: BaseException) -> None:
        """The record of an error: a person's to mend in plain words, any other with its traceback."""
        if isinstance(error, (UserError, DataError)):
            self._fail(error, str(error), error.fix, expected=True)
        elif disk.is_full(error, self._run_dir):
            full = disk.described(self._run_dir)
            disk.give_up_reserve(self._run_dir)
            with contextlib.suppress(OSError):  # others may have taken the room; then the supervisor says it
                self._fail(error, f"{full.message} ({error})", full.fix, expected=True)
        else:
            fix = _LESS_MEMORY if is_out_of_memory(error) else ""
            self._fail(error, f"{type(error).__name__}: {error}", fix, expected=False)

    def _fail(self, error: BaseException, message: str, fix: str, *, expected: bool) -> None:
        trace = "" if expected else "".join(traceback.format_exception(error))
        self._writer.write(
            Failed(
                rank=self.rank,
                error=type(error).__name__,
                message=message,
                fix=fix,
                traceback=trace,
                phase=self.phase,
                expected=expected,
            )
        )


def used_bytes() -> int:
    """Device memory in use now; on CPU live storages where they are counted, else the process's resident memory."""
    import torch

    from training.memory_limit import counter

    if torch.cuda.is_available():
        return torch.cuda.memory_allocated()
    counting = counter()
    return counting.current if counting else psutil.Process().memory_info().rss


def peak_bytes() -> int:
    """The most device memory in use at any time; on CPU of live storages or of resident memory, as in `used_bytes`."""
    import torch

    from training.memory_limit import counter

    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    counting = counter()
    return counting.peak if counting else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
