"""Reports the metrics of a run to experiment trackers, each in a thread of its own.

A tracker that is slow, unreachable or broken therefore delays no step and ends no run: the run gets a warning and continues.
"""

import contextlib
import copy
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from training.config.name_lists import listed, missing_trackers
from training.config.run_config import RunConfig
from training.reports.report import Report
from training.reports.tracker_connections import CONNECT, Connection, TrackedRun
from training.run_folder.events import Note

_MOST_WAITING = 1000
_END_SECONDS, _HURRIED_SECONDS = 20.0, 5.0
_CREDENTIALS = re.compile(r"//[^\s/@]+@")

Logged = tuple[TrainerState, dict[str, float]]


class ExperimentTrackers(TrainerCallback):  # type: ignore[misc]
    """The trackers of a run's `report_to`. Only rank 0 reports."""

    def __init__(self, config: RunConfig, run_dir: Path, report: Report) -> None:
        self._config, self._run_dir, self._report = config, run_dir, report
        self._threads: list[TrackerThread] = []

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: Any = None, **_: Any
    ) -> None:
        """Starts a thread for each tracker that is installed."""
        names = listed(self._config.report_to) if self._report.rank == 0 else ()
        absent = {problem.value: problem for problem in missing_trackers(self._config.report_to)}
        for name in names:
            if name in absent:
                message = f"{name} gets no metrics of this run: it {absent[name].message} {absent[name].fix}"
                self._report.for_run(Note(message=message, level="warning"))
                continue
            run = TrackedRun.of(self._config, self._run_dir, args, state, model)
            self._threads.append(TrackerThread(name, run, self._report))
            self._threads[-1].start()

    def log(self, state: TrainerState, logs: Mapping[str, float | None]) -> None:
        """Passes on what the trainer logged, with this rank's memory."""
        if not self._threads:
            return
        values = {name: value for name, value in {**logs, **self._report.memory_now()}.items() if value is not None}
        for thread in self._threads:
            thread.log(copy.copy(state), values)

    @contextmanager
    def closed_at_end(self, *, hurried: Callable[[], bool]) -> Iterator[None]:
        """A context that ends the run in each tracker; waits for what is still to be sent, if `hurried` only a few seconds."""
        failed = True
        try:
            yield
            failed = False
        finally:
            for thread in self._threads:
                thread.end(failed=failed)
            for thread in self._threads:
                thread.wait(_HURRIED_SECONDS if failed or hurried() else _END_SECONDS)


class TrackerThread(Thread):
    """Sends a run's metrics to one tracker; connects again with each metric while the tracker is unreachable."""

    def __init__(self, tracker: str, run: TrackedRun, report: Report) -> None:
        super().__init__(name=tracker, daemon=True)
        self._run, self._report = run, report
        self._connection: Connection | None = None
        self._waiting: SimpleQueue[Logged | None] = SimpleQueue()
        self._works, self._warned, self._ends, self._failed = True, False, False, False

    def log(self, state: TrainerState, logs: dict[str, float]) -> None:
        """Queues metrics, unless too many are waiting."""
        if self._waiting.qsize() < _MOST_WAITING:
            self._waiting.put((state, logs))

    def end(self, *, failed: bool) -> None:
        """Makes the thread end the tracker's run after the last metric."""
        self._failed, self._ends = failed, True
        self._waiting.put(None)

    def wait(self, seconds: float) -> None:
        """Waits for the thread's end; warns if it takes longer."""
        self.join(seconds)
        if self.is_alive():
            self._warn(f"no answer within {seconds:.0f} s")

    def run(self) -> None:
        """Works until the end; no error leaves this thread."""
        self._try(self._connected)
        while (logged := self._waiting.get()) is not None:
            if self._works or not self._ends:  # at the end, a tracker that failed is not tried again
                self._try(partial(self._send, *logged))
        if self._connection and self._works:
            self._try(partial(self._connection.finish, self._failed))

    def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = CONNECT[self.name](self._run)
            self._report.for_run(Note(message=f"Reports to {self.name}: {self._connection.place}."))
        return self._connection

    def _send(self, state: TrainerState, logs: dict[str, float]) -> None:
        self._connected().log(state, logs)

    def _try(self, work: Any) -> None:
        try:
            work()
            self._works = True
        except Exception as error:
            self._works = False
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            self._warn(f"{type(error).__name__}: {lines[0] if lines else 'no message'}")

    def _warn(self, reason: str) -> None:
        """Writes a warning, the first time that something fails."""
        if self._warned:
            return
        self._warned = True
        shown = _CREDENTIALS.sub("//", reason)[:300]
        message = f"{self.name} did not take metrics of this run: {shown}. The run continues; Lathe has all metrics."
        with contextlib.suppress(OSError):
            self._report.for_run(Note(message=message, level="warning"))
