"""Following a run from the command line: reads the database at intervals, changes nothing, ends when the run does."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from app import text
from app.cli_screen import Screen
from app.run_document import BRIEF, place
from app.run_words import eta
from worker import database, history, metrics, runs
from worker.models import RunEvent, Status
from worker.patience import UNREACHABLE

POLL_SECONDS = 0.5
PATIENCE_SECONDS = 3.0
"""How long nothing may change before the follower says that no worker seems to be there, or for how long it has waited."""


@dataclass(frozen=True)
class Moment:
    """What a follower sees at once: the run's fields, its newest metrics by name, its place in the queue, its news."""

    run: dict[str, Any]
    latest: dict[str, float | None]
    queue: dict[str, Any] | None
    events: list[RunEvent]

    @property
    def status(self) -> Status:
        return Status(self.run["status"])


def look(run_id: str, after_event: int) -> Moment:
    """Reads a run and the events after `after_event`.

    Raises:
        RunNotFound: the run is gone.
    """
    with database.read() as session:
        run = runs.get(session=session, run_id=run_id)
        latest = metrics.latest(session=session, run_id=run.id)
        events = history.events(session=session, run_id=run.id, after_id=after_event)
        session.expunge_all()
        return Moment(
            run=run.model_dump(mode="json", include={*BRIEF, "phase_done", "phase_total", "request"}),
            latest={name: value for (name, rank), (_, value) in latest.items() if rank < 0},
            queue=place(session, run),
            events=events,
        )


def follow(
    run_id: str,
    screen: Screen,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Status:
    """Shows the run on `screen` until it ends, and returns how it ended. Waits for a database that does not answer.

    Raises:
        RunNotFound: the run was deleted.
        KeyboardInterrupt: the person has seen enough; the run is not touched.
    """
    last_event, doing, since = 0, "", clock()
    while True:
        try:
            moment = look(run_id, last_event)
        except UNREACHABLE:
            screen.update("The database does not answer; trying again", "no database")
            sleep(POLL_SECONDS * 4)
            continue
        if heading(moment) != doing:
            doing, since = heading(moment), clock()
        last_event = max([last_event, *(event.id or 0 for event in moment.events)])
        for told in news(moment):
            screen.note(told)
        if moment.status.ended:
            screen.close()
            return moment.status
        screen.update(line(moment, clock() - since, screen.bar_width), doing)
        sleep(POLL_SECONDS)


def news(moment: Moment) -> list[str]:
    """The events, each in a line; phases have lines of their own, and how a run ended is told with its results."""
    told = [event for event in moment.events if event.kind not in ("phase", moment.status.value)]
    return [event.message if event.level == "info" else f"{event.level}: {event.message}" for event in told]


def heading(moment: Moment) -> str:
    """What the run is doing, in a word or two; a change of it is worth a line of its own."""
    if moment.status is Status.QUEUED:
        return "queued"
    if moment.run["request"]:
        return "stopping" if moment.run["request"] == "stop" else "leaving this worker"
    return moment.run["phase"] or "starting"


def line(moment: Moment, seconds: float, bar_width: int = 0) -> str:
    """The run in one line; `seconds` is how long it has been doing this, `bar_width` 0 leaves out the bar."""
    if moment.queue:
        return waiting(moment.queue, seconds)
    done, total = _done(moment.run)
    bar = text.bar(done / total, bar_width) if total and bar_width else ""
    far = f"{done:,}/{total:,}" if total else text.duration(seconds) if seconds >= PATIENCE_SECONDS else ""
    return "  ".join(part for part in (heading(moment), bar, far, *numbers(moment)) if part)


def waiting(queue: dict[str, Any], seconds: float) -> str:
    """Why a queued run does not train yet: others are before it, or nobody takes runs."""
    stands = f"place {queue['place']} of {queue['waiting']} in the queue"
    if queue["overloaded"]:
        return f"Queued: {stands}. {queue['overloaded']}"
    if queue["running"]:
        return f"Queued: {stands}, {text.plural(queue['running'], 'run')} training"
    if seconds < PATIENCE_SECONDS:
        return f"Queued: {stands}"
    return f"Waiting for a worker; start one with `lathe up` ({stands})"


def numbers(moment: Moment) -> list[str]:
    """The measures that are known so far, each with its name or unit."""
    latest, run = moment.latest, moment.run
    shown = [
        ("loss ", text.decimal(latest.get("loss"))),
        ("eval loss ", text.decimal(latest.get("eval_loss"))),
        ("", text.rate(latest.get("tokens_per_second"), "tokens")),
        ("peak ", text.byte_size(run["peak_bytes"])),
        ("ETA ", text.duration(eta(run))),
    ]
    return [f"{label}{told}" for label, told in shown if told != text.NONE]


def _done(run: dict[str, Any]) -> tuple[int, int]:
    if run["phase_total"]:
        return run["phase_done"] or 0, run["phase_total"]
    return run["step"], run["total_steps"] or 0
