"""Saves the checkpoints of a run: while training waits, or in the background. Rank 0 seals each once all ranks have written it."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from training.checkpointing.deferred_writes import DeferredWrites, Write
from training.config.run_config import RunConfig
from training.reports.report import Report
from training.run_folder import checkpoints
from training.run_folder.events import CheckpointSaved, Metrics, Note
from training.run_folder.paths import checkpoint_dir

Check = Callable[[Path], None]
STALL = "checkpoint_stall"
"""Metric: the seconds for which a checkpoint stopped training."""
_NO_LIMIT = timedelta(days=30)
_LESS_PRIORITY = 5


class Checkpointer:
    """Saves checkpoints, one at a time. Every rank has one, and calls the same methods in the same order.

    With `async_save`, training stops only while the state is copied to host memory; a thread writes the copy.
    """

    def __init__(self, run_dir: Path, config: RunConfig, report: Report) -> None:
        self._run_dir, self._config, self._report = run_dir, config, report
        self._deferred = DeferredWrites(self._note)
        self._notes: set[str] = set()
        self._saved = 0
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def prepare(self, tensors: Iterable[torch.Tensor]) -> None:
        """Reserves host memory for copies of the tensors that checkpoints will hold, in the background."""
        if self._config.async_save:
            self._deferred.prepare(tensors)

    def save(self, step: int, best: int | None, write: Callable[[], None], check: Check = lambda _: None) -> None:
        """Saves the checkpoint of a step. `write` lets the libraries write it; the checkpoint of step `best` is kept, too.

        It counts if `check`, which rank 0 calls with its folder once all ranks have written, raises nothing.

        Raises:
            Exception: this checkpoint cannot be written or is not what was trained, or the one before.
        """
        began = time.perf_counter()
        self.wait()
        self._saved += 1
        if self._config.async_save:
            with self._deferred.taking() as writes:
                write()
            stall = time.perf_counter() - began
            self._thread = threading.Thread(
                target=self._complete_in_background,
                args=(step, best, writes, check, stall),
                name="checkpoint",
                daemon=True,
            )
            self._thread.start()
        else:
            write()
            size = self._complete(step, best, [], check)
            self._tell(step, size, time.perf_counter() - began, 0.0)

    def check(self) -> None:
        """Raises the error of the thread, if it has failed."""
        if self._error is not None:
            self._report.enter("saving")
            error, self._error = self._error, None
            raise error

    def wait(self) -> None:
        """Waits until the last checkpoint is complete. Raises Exception if it could not be written."""
        if self._thread is not None and self._thread.is_alive():
            with self._report.during("saving"):
                self._thread.join()
        self._thread = None
        self.check()

    def wait_after_error(self, seconds: float = 120.0) -> None:
        """Gives the thread time to complete a checkpoint after training has failed."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _complete_in_background(
        self, step: int, best: int | None, writes: list[Write], check: Check, stall: float
    ) -> None:
        began = time.perf_counter()
        try:
            _lower_priority()
            size = self._complete(step, best, writes, check)
        except BaseException as error:  # `check` raises it in the main thread
            self._error = error
        else:
            self._tell(step, size, stall, time.perf_counter() - began)

    def _complete(self, step: int, best: int | None, writes: list[Write], check: Check) -> int:
        """Writes this rank's files. Rank 0 then waits for the others and seals, and they wait for it. Returns the bytes."""
        while writes:
            writes.pop(0)()
        size, checkpoint = 0, checkpoint_dir(self._run_dir, step)
        ranks = dist.get_world_size() if dist.is_initialized() else 1
        if ranks > 1:  # a store without a time limit, since a collective has one; and a connection of the thread's own
            store = dist.distributed_c10d._get_default_store().clone()  # type: ignore[attr-defined]
            store.set(self._key(f"written by {dist.get_rank()}"), "")
            others = [self._key(f"written by {rank}") for rank in range(ranks)]
            store.wait(others if self._report.rank == 0 else [self._key("sealed")], _NO_LIMIT)
        if self._report.rank == 0:
            check(checkpoint)
            size = checkpoints.seal(checkpoint)
            checkpoints.prune(self._run_dir, self._config.save_total_limit, best)
            if ranks > 1:
                store.set(self._key("sealed"), "")
        return size

    def _key(self, what: str) -> str:
        return f"checkpoint {self._saved} {what}"

    def _tell(self, step: int, size: int, stall: float, seconds: float) -> None:
        path = str(checkpoint_dir(self._run_dir, step).relative_to(self._run_dir))
        saved = CheckpointSaved(step=step, path=path, bytes=size, stall_seconds=stall, write_seconds=seconds)
        self._report.for_run(saved)
        self._report.for_run(Metrics(step=step, values={STALL: stall}))

    def _note(self, message: str) -> None:
        """Reports a message once per run."""
        if message.split(maxsplit=1)[0] not in self._notes:
            self._notes.add(message.split(maxsplit=1)[0])
            self._report.for_rank(Note(message=message))


def _lower_priority() -> None:
    """Lets training go before this thread. Only relative to its niceness now, which a user other than root may not lower."""
    if sys.platform == "linux":  # where a thread has a priority of its own
        thread = threading.get_native_id()
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + _LESS_PRIORITY)
