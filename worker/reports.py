"""What a training process reports in its run's folder, read from where the database stands and stored there in batches."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from training.events import (
    CheckpointSaved,
    Event,
    Failed,
    Finished,
    Metrics,
    OutOfMemory,
    PhaseStarted,
    Planned,
    RankStarted,
    Resumed,
    decode,
)
from worker import database, history, logs, runs
from worker.models import Run

EVENTS_FILE = "events.jsonl"
LOG_FILE = "output.log"
_READ_BYTES = 2**20
_LOG_BACKLOG_BYTES = 16 * 2**20
_LOG_TAIL_LINES = 60
_MOST_LOG_LINES = 1000  # stored of what is printed within half a second
_MOST_KEPT = 50_000  # records or lines held in memory for a database that does not answer
_END_BYTES = 256 * 2**10


class Tail:
    """The lines that are added to a file, from the byte `position` on."""

    def __init__(self, path: Path, position: int) -> None:
        self.path = path
        self.position = position

    def read(self, *, to_end: bool = False) -> list[bytes]:
        """Whole lines not read before, at most about 1 MiB of them; with `to_end` also a last line without its end."""
        if self.waiting_bytes() <= 0:
            return []
        with self.path.open("rb") as stream:
            stream.seek(self.position)
            chunk = stream.read(_READ_BYTES)
        whole = chunk.rfind(b"\n") + 1
        # A progress bar may run for long without a line's end; what fills the buffer is taken as it is.
        taken = whole or (len(chunk) if to_end or len(chunk) == _READ_BYTES else 0)
        self.position += taken
        lines = chunk[:taken].split(b"\n")
        return lines if lines[-1] else lines[:-1]

    def waiting_bytes(self) -> int:
        """Bytes that are in the file and not read."""
        try:
            return self.path.stat().st_size - self.position
        except FileNotFoundError:
            return 0

    def end_line(self) -> None:
        """Ends a last line that a crash cut short, so that what is appended next is a line of its own."""
        if self.path.exists() and self.path.stat().st_size > 0:
            with self.path.open("r+b") as stream:
                stream.seek(-1, 2)
                if stream.read(1) != b"\n":
                    stream.write(b"\n")


@dataclass
class Seen:
    """What this attempt has reported so far, whether or not the database has it."""

    ranks: dict[int, int] = field(default_factory=dict)  # rank -> process number
    phase: str = "starting"
    phases: set[str] = field(default_factory=set)
    start_step: int = 0
    step: int = 0
    saved_step: int | None = None
    finished: Finished | None = None
    failures: list[Failed] = field(default_factory=list)
    out_of_memory: OutOfMemory | None = None  # of the first rank to report one
    log: deque[str] = field(default_factory=lambda: deque(maxlen=_LOG_TAIL_LINES))

    def take(self, event: Event) -> None:
        match event:
            case RankStarted():
                self.ranks[event.rank] = event.pid
            case PhaseStarted():
                self.phase = event.phase
                self.phases.add(event.phase)
            case Planned():
                self.start_step = self.step = event.start_step
            case Metrics():
                self.step = max(self.step, event.step)
            case CheckpointSaved() | Resumed():
                self.saved_step = event.step
            case Failed():
                self.failures.append(event)
            case OutOfMemory():
                self.out_of_memory = self.out_of_memory or event
            case Finished():
                self.finished = event

    @property
    def trained(self) -> bool:
        """Whether this attempt made a step."""
        return self.step > self.start_step


class Reports:
    """The reports of one run, on their way from its files to the database.

    `read` never fails for the database's sake, and `store` may be tried again: the offsets stored with each batch say
    where it ends.
    """

    def __init__(self, run: Run, run_dir: Path) -> None:
        self.seen = Seen()
        self._run_id, self._attempt = run.id, run.attempt
        self._events = Tail(run_dir / EVENTS_FILE, run.event_offset)
        self._log = Tail(run_dir / LOG_FILE, run.log_offset)
        self._stored = (run.event_offset, run.log_offset)
        self._new_events: list[Event] = []
        self._new_lines: list[str] = []

    def store_leftovers(self, beat: Callable[[], None]) -> None:
        """Stores what an earlier attempt reported and nobody stored; none of it counts as this attempt's.

        Raises:
            LeaseLost: the run is another's.
            sqlalchemy.exc.DBAPIError: the database does not answer.
        """
        self._events.end_line()
        self._log.end_line()
        while self.read():
            self.store()
            beat()
        self.seen = Seen()

    def read(self, *, to_end: bool = False) -> bool:
        """Takes in what is new. False where nothing was."""
        return any([self._read_events(to_end), self._read_log(to_end)])

    def _read_events(self, to_end: bool) -> bool:
        if len(self._new_events) >= _MOST_KEPT:
            return False  # the database is away, and the file keeps the rest
        found = self._events.read(to_end=to_end)
        for event in filter(None, map(decode, found)):
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
            self._new_lines.append(f"... {left_out} lines left out here; the run's {LOG_FILE} has them ...")
        lines = [line.decode("utf-8", "replace") for line in found[-_MOST_LOG_LINES:]]
        self._new_lines += lines
        self.seen.log.extend(logs.clean(line) for line in lines[-_LOG_TAIL_LINES:])
        return bool(found)

    def store(self) -> None:
        """Brings what was read into the database; nothing happens where that is nothing.

        Raises:
            LeaseLost: the run is another's.
            sqlalchemy.exc.DBAPIError: the database does not answer; what was read is kept.
        """
        reached = (self._events.position, self._log.position)
        if reached == self._stored:
            return
        run_id, attempt = self._run_id, self._attempt
        events, lines = self._new_events, self._new_lines
        with database.write() as session:
            if not (
                history.apply(session=session, run_id=run_id, attempt=attempt, events=events, new_offset=reached[0])
                and logs.append(session=session, run_id=run_id, attempt=attempt, lines=lines, new_offset=reached[1])
            ):
                raise runs.LeaseLost(f"Run {self._run_id} is past attempt {self._attempt}.")
        self._stored = reached
        self._new_events, self._new_lines = [], []

    def _skip_log(self) -> None:
        skipped = self._log.waiting_bytes() - _READ_BYTES
        self._log.position += skipped
        self._new_lines.append(f"... {skipped / 2**20:.0f} MiB left out here; the run's {LOG_FILE} has them ...")


def last_word(run_dir: Path) -> Finished | None:
    """The record with which the last attempt ended, where it came to its end; None where it was cut short or failed."""
    tail = Tail(run_dir / EVENTS_FILE, 0)
    tail.position = max(0, tail.waiting_bytes() - _END_BYTES)
    seen = Seen()
    while lines := tail.read(to_end=True):
        for event in filter(None, map(decode, lines)):
            if isinstance(event, RankStarted):
                seen = Seen()
            seen.take(event)
    return None if seen.failures else seen.finished
