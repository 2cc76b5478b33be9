"""Following a run from the command line: reads it at intervals until it ends."""

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TextIO

from app.cli.client import Unreachable, connect, path_of
from app.cli.options import clear_line
from app.format import numbers as text
from app.format.numbers import shorten
from app.format.run_text import eta
from training.run_folder.evaluated import evaluated
from training.units import NONE, byte_size
from worker.store.database import UNREACHABLE
from worker.store.tables import Status

EVERY_SECONDS = 5.0


class Screen:
    """Shows the progress of a run in a file or a pipe: a line for each new activity, and one every few seconds.

    `bar_width` is the width of a progress bar in characters, 0 for none.
    """

    bar_width = 0

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._heading = self._line = ""
        self._written = 0.0

    def update(self, line: str, heading: str) -> None:
        """Shows the run's current line; `heading` names its activity."""
        now = self._clock()
        due = heading != self._heading or now - self._written >= EVERY_SECONDS
        if due and line != self._line:
            self._heading, self._line, self._written = heading, line, now
            self.note(line)

    def note(self, line: str) -> None:
        """Writes a permanent line."""
        self._stream.write(line + "\n")
        self._stream.flush()

    def close(self) -> None:
        """Clears the current line, where it is none of the permanent ones."""


class LiveScreen(Screen):
    """A terminal: the last line is updated in place, notes scroll above it."""

    bar_width = 20

    def update(self, line: str, heading: str) -> None:  # noqa: ARG002 - a terminal shows every line
        self._line = line
        self._write(self._fitted())

    def note(self, line: str) -> None:
        self._write(f"{line}\n{self._fitted()}")

    def close(self) -> None:
        self._line = ""
        self._write("")

    def _fitted(self) -> str:
        return shorten(self._line, shutil.get_terminal_size().columns - 1)

    def _write(self, line: str) -> None:
        clear_line(self._stream)
        self._stream.write(line)
        self._stream.flush()


def screen_for(stream: TextIO) -> Screen:
    """The screen for the stream."""
    return LiveScreen(stream) if stream.isatty() else Screen(stream)


POLL_SECONDS = 0.5
QUIET_SECONDS = 3.0
"""Seconds without a change before the follower reports a missing worker, or how long it has waited."""


@dataclass(frozen=True)
class Snapshot:
    """A run at one time: its fields, its latest metrics by name, its position in the queue, its new events."""

    run: dict[str, Any]
    latest: dict[str, float | None]
    queue: dict[str, Any] | None
    events: list[dict[str, Any]]
    last_event: int

    @property
    def status(self) -> Status:
        return Status(self.run["status"])


def read(run_id: str, after_event: int) -> Snapshot:
    """Reads a run and the events after `after_event`."""
    client = connect()
    run = client.get(path_of("runs", run_id))  # before the events: an ended run has no later ones
    page = client.get(path_of("runs", run_id, "/events"), after=after_event)
    return Snapshot(run, run["latest"], run["queue"], page["events"], page["next"])


def follow(
    run_id: str,
    screen: Screen,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Status:
    """Shows the run on `screen` until it ends, and returns its status. Retries while the database is unreachable."""
    last_event, doing, since = 0, "", clock()
    while True:
        try:
            snapshot = read(run_id, last_event)
        except (*UNREACHABLE, Unreachable) as error:
            place = "server" if isinstance(error, Unreachable) else "database"
            screen.update(f"The {place} is unreachable; retrying", f"no {place}")
            sleep(POLL_SECONDS * 4)
            continue
        if heading(snapshot) != doing:
            doing, since = heading(snapshot), clock()
        last_event = snapshot.last_event
        for message in news(snapshot):
            screen.note(message)
        if snapshot.status.ended:
            screen.close()
            return snapshot.status
        screen.update(line(snapshot, clock() - since, screen.bar_width), doing)
        sleep(POLL_SECONDS)


def news(snapshot: Snapshot) -> list[str]:
    """The new events as lines, without phases and the end of the run, which have their own lines."""
    events = [event for event in snapshot.events if event["kind"] not in ("phase", snapshot.status.value)]
    return [
        event["message"] if event["level"] == "info" else f"{event['level']}: {event['message']}" for event in events
    ]


def heading(snapshot: Snapshot) -> str:
    """The activity of the run in a few words; each change gets a new line."""
    if snapshot.status is Status.QUEUED:
        return "queued"
    if snapshot.run["request"]:
        return "stopping" if snapshot.run["request"] == "stop" else "requeuing"
    return snapshot.run["phase"] or "starting"


def line(snapshot: Snapshot, seconds: float, bar_width: int = 0) -> str:
    """The run in one line; `seconds` is the time in its current activity, `bar_width` 0 omits the bar."""
    if snapshot.queue:
        return waiting(snapshot.queue, seconds)
    done, total = _done(snapshot.run)
    bar = text.bar(done / total, bar_width) if total and bar_width else ""
    progress = f"{done:,}/{total:,}" if total else text.duration(seconds) if seconds >= QUIET_SECONDS else ""
    return "  ".join(part for part in (heading(snapshot), bar, progress, *numbers(snapshot)) if part)


def waiting(queue: dict[str, Any], seconds: float) -> str:
    """Why a queued run has not started: its owner's quota, other runs are before it, or there is no worker."""
    position = f"position {queue['place']} of {queue['waiting']} in the queue"
    if why := queue["quota"] or queue["overloaded"]:
        return f"Queued: {position}. {why}"
    if queue["job"]:
        return f"Queued: {queue['job']}"
    if queue["running"]:
        return f"Queued: {position}, {text.plural(queue['running'], 'run', 'runs')} running"
    if seconds < QUIET_SECONDS:
        return f"Queued: {position}"
    return f"Waiting for a worker; start one with `lathe up` ({position})"


def numbers(snapshot: Snapshot) -> list[str]:
    """The latest metrics, each with its name or unit."""
    latest, run = snapshot.latest, snapshot.run
    name, value = evaluated(run["config"].get("task"), latest.get("eval_loss"))
    shown = [
        (f"{name} ", text.decimal(latest.get(name))),
        (f"eval {name} ", text.decimal(value)),
        ("", text.rate(latest.get("tokens_per_second"), "tokens")),
        ("peak ", byte_size(run["peak_bytes"])),
        ("ETA ", text.duration(eta(run))),
    ]
    return [f"{label}{told}" for label, told in shown if told != NONE]


def _done(run: dict[str, Any]) -> tuple[int, int]:
    if run["phase_total"]:
        return run["phase_done"] or 0, run["phase_total"]
    return run["step"], run["total_steps"] or 0
