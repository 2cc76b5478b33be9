"""Reads what a training process reports in its run's folder, and stores it in the database in batches."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from training import redaction
from training.run_folder import checkpoints
from training.run_folder import events as records
from training.run_folder.paths import EVENTS_FILE, LOG_FILE, checkpoint_step, events_file
from worker.store import database, history
from worker.store.tables import Run
from worker.store.work import LeaseLost

_READ_BYTES = 2**20
_LOG_BACKLOG_BYTES = 16 * 2**20
_LOG_TAIL_LINES = 60
_MOST_LOG_LINES = 1000  # stored per read, that is every half second
_MOST_KEPT = 50_000  # records or lines held in memory while the database is unreachable
_FADING = 0.9  # how fast a long step is forgotten
_END_BYTES = 256 * 2**10


class Tail:
    """Reads the lines appended to a file, from the byte `position` on."""

    def __init__(self, path: Path, position: int) -> None:
        self.path = path
        self.position = position

    def read(self, *, to_end: bool = False) -> list[bytes]:
        """New complete lines, about 1 MiB at most; with `to_end` also a last incomplete line."""
        if self.waiting_bytes() <= 0:
            return []
        with self.path.open("rb") as stream:
            stream.seek(self.position)
            chunk = stream.read(_READ_BYTES)
        whole = chunk.rfind(b"\n") + 1
        # A progress bar may print long without a newline; a full buffer is taken as it is.
        taken = whole or (len(chunk) if to_end or len(chunk) == _READ_BYTES else 0)
        self.position += taken
        lines = chunk[:taken].split(b"\n")
        return lines if lines[-1] else lines[:-1]

    def waiting_bytes(self) -> int:
        """Bytes in the file that are not read yet."""
        try:
            return self.path.stat().st_size - self.position
        except FileNotFoundError:
            return 0

    def end_line(self) -> None:
        """Ends a last line that a crash truncated, so that the next one starts a new line."""
        if self.path.exists() and self.path.stat().st_size > 0:
            with self.path.open("r+b") as stream:
                stream.seek(-1, 2)
                if stream.read(1) != b"\n":
                    stream.write(b"\n")


@dataclass
class AttemptProgress:
    """What this attempt has reported so far, stored or not. With `has_result` the result of the training is saved whole.

    `trained_before`: an earlier attempt has trained steps. `saved_step`: the step of the newest checkpoint, of any attempt.
    `step_seconds`: the longest time that a step took lately, with what was done between two reports of a step; 0 if unknown.
    """

    trained_before: bool = False
    ranks: dict[int, int] = field(default_factory=dict)  # rank -> pid, of those on the first machine that have not left
    phase: str = "starting"
    phases: set[str] = field(default_factory=set)
    start_step: int = 0
    step: int = 0
    step_seconds: float = 0.0
    saved_step: int | None = None
    has_result: bool = False
    finished: records.Finished | None = None
    failures: list[records.Failed] = field(default_factory=list)
    node_fault: records.NodeFault | None = None
    out_of_memory: records.OutOfMemory | None = None  # of the first rank to report one
    log: deque[str] = field(default_factory=lambda: deque(maxlen=_LOG_TAIL_LINES))
    _stepped_at: float | None = None

    def take(self, event: records.Event) -> None:
        match event:
            case records.RankStarted(machine=0):
                self.ranks[event.rank] = event.pid
            case records.RankLeft():
                self.ranks.pop(event.rank, None)
            case records.PhaseStarted():
                self.phase = event.phase
                self.phases.add(event.phase)
            case records.Planned():
                self.start_step = self.step = event.start_step
            case records.Metrics():
                self._stepped(event)
            case records.CheckpointSaved() | records.Resumed():
                self.saved_step = event.step
            case records.ResultSaved():
                self.has_result = True
            case records.Failed():
                self.failures.append(event)
            case records.NodeFault():
                self.node_fault = event
            case records.OutOfMemory():
                self.out_of_memory = self.out_of_memory or event
            case records.Finished():
                self.finished = event

    def _stepped(self, event: records.Metrics) -> None:
        if event.step <= self.step:
            return
        if self._stepped_at is not None:
            seconds = (event.time - self._stepped_at) / (event.step - self.step)
            self.step_seconds = max(seconds, _FADING * self.step_seconds)
        self.step, self._stepped_at = event.step, event.time

    @property
    def trained(self) -> bool:
        """True if this attempt trained a step."""
        return self.step > self.start_step

    @property
    def can_train(self) -> bool:
        """True if the run has trained a step, in this attempt or before: its settings and data work."""
        return self.trained or self.trained_before


class Reports:
    """Copies the reports of one run from its files to the database.

    `read` does not use the database, and `store` can be repeated: the offset stored with each batch marks its end.
    """

    def __init__(self, run: Run, run_dir: Path) -> None:
        self._run_id, self._attempt, self._run_dir = run.id, run.attempt, run_dir
        self.seen = self._at_start(run.step > 0)
        machines = int(run.config.get("num_machines", 1))
        offsets = {"0": run.event_offset} | run.node_offsets
        self._events = [Tail(events_file(run_dir, number), offsets.get(str(number), 0)) for number in range(machines)]
        self._log = Tail(run_dir / LOG_FILE, run.log_offset)
        self._stored = self._reached()
        self._new_events: list[records.Event] = []
        self._new_lines: list[str] = []

    def store_leftovers(self, beat: Callable[[], None]) -> None:
        """Stores reports of an earlier attempt that were not stored yet; they do not count for this attempt.

        Raises:
            LeaseLost: another process holds the run.
            sqlalchemy.exc.DBAPIError: the database is unreachable.
        """
        for tail in (*self._events, self._log):
            tail.end_line()
        while self.read():
            self.store()
            beat()
        self.seen = self._at_start(self.seen.trained_before)

    def _at_start(self, trained_before: bool) -> AttemptProgress:
        newest = next(iter(checkpoints.sealed(self._run_dir)), None)
        return AttemptProgress(trained_before, saved_step=checkpoint_step(newest) if newest else None)

    def read(self, *, to_end: bool = False) -> bool:
        """Reads new reports. False if there are none."""
        return any([self._read_events(to_end), self._read_log(to_end)])

    def _read_events(self, to_end: bool) -> bool:
        if len(self._new_events) >= _MOST_KEPT:
            return False  # the database is unreachable; the rest stays in the file
        found = [line for tail in self._events for line in tail.read(to_end=to_end)]
        for event in filter(None, map(records.decode, found)):
            self.seen.take(event)
            self._new_events.append(event)
        return bool(found)

    def _read_log(self, to_end: bool) -> bool:
        if len(self._new_lines) >= _MOST_KEPT:
            return False
        if self._log.waiting_bytes() > _LOG_BACKLOG_BYTES:
            self._skip_log()
        found = self._log.read(to_end=to_end)
        # A process that prints without end must not fill the database.
        left_out = len(found) - _MOST_LOG_LINES
        if left_out > 0:
            self._new_lines.append(f"... {left_out} lines skipped; the run's {LOG_FILE} has them ...")
        lines = [line.decode("utf-8", "replace") for line in found[-_MOST_LOG_LINES:]]
        self._new_lines += lines
        self.seen.log.extend(redaction.clean(line) for line in lines[-_LOG_TAIL_LINES:])
        return bool(found)

    def store(self) -> None:
        """Stores what was read, if anything.

        Raises:
            LeaseLost: another process holds the run.
            sqlalchemy.exc.DBAPIError: the database is unreachable; the reports stay in memory.
        """
        reached = self._reached()
        if reached == self._stored:
            return
        run_id, attempt = self._run_id, self._attempt
        events, lines = self._new_events, self._new_lines
        with database.write() as session:
            if not (
                history.apply(
                    session=session,
                    run_id=run_id,
                    attempt=attempt,
                    events=events,
                    new_offset=reached[0][0],
                    node_offsets=reached[0][1:],
                )
                and history.append_log(
                    session=session, run_id=run_id, attempt=attempt, lines=lines, new_offset=reached[1]
                )
            ):
                raise LeaseLost(f"Run {self._run_id} is past attempt {self._attempt}.")
        self._stored = reached
        self._new_events, self._new_lines = [], []

    def _reached(self) -> tuple[tuple[int, ...], int]:
        """The bytes read of each machine's records, and of the log."""
        return tuple(tail.position for tail in self._events), self._log.position

    def _skip_log(self) -> None:
        skipped = self._log.waiting_bytes() - _READ_BYTES
        self._log.position += skipped
        self._new_lines.append(f"... {skipped / 2**20:.0f} MiB skipped; the run's {LOG_FILE} has them ...")


def finished_record(run_dir: Path) -> records.Finished | None:
    """The last attempt's `Finished` record; None if it was killed or failed."""
    tail = Tail(run_dir / EVENTS_FILE, 0)
    tail.position = max(0, tail.waiting_bytes() - _END_BYTES)
    seen = AttemptProgress()
    while lines := tail.read(to_end=True):
        for event in filter(None, map(records.decode, lines)):
            if isinstance(event, records.RankStarted):
                seen = AttemptProgress()
            seen.take(event)
    return None if seen.failures else seen.finished
