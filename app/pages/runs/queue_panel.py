"""The queue above the history: running and waiting runs in order, when each starts, and the controls of the order."""

from markupsafe import Markup

from app.access import callers
from app.documents.queue import Queue, read
from app.pages.common.cache import TimedCache
from app.pages.common.html import ago, each, panel, run_link
from app.words.numbers import coarse
from training.units import NONE
from worker.store import database, waiting
from worker.store.tables import Run

MOST_SHOWN = 100


_queues: TimedCache[str, Queue] = TimedCache(seconds=1.0)


def current() -> Queue:
    """The queue, at most a second old: all viewers share one reading."""
    return _queues.get("queue", _read)


def forget() -> None:
    """Clears the cache after somebody has changed the queue."""
    _queues.clear()


def _read() -> Queue:
    with database.read() as session:
        return read(session)


def queue_html(queue: Queue) -> Markup:
    """The panel; empty if nothing waits and the queue is not paused."""
    if not queue.waiting and not queue.paused:
        return Markup("")
    rows = each("{}", [(_row(number, run, queue),) for number, run in enumerate(queue.waiting[:MOST_SHOWN], 1)])
    heads = each('<th class="{}">{}</th>', _HEADS)
    table = Markup('<table class="queue"><thead><tr>{}</tr></thead><tbody data-order>{}</tbody></table>')
    shown = table.format(heads, rows) if queue.waiting else Markup('<p class="note">No runs are waiting.</p>')
    hidden = len(queue.waiting) - MOST_SHOWN
    more = Markup('<p class="note">{} more.</p>').format(f"{hidden:,}") if hidden > 0 else Markup("")
    return panel(_title(queue), _notices(queue) + shown + more, classes="queue-panel", aside=_pause(queue))


_HEADS = [
    ("number", "Place"),
    ("", "Run"),
    ("", "Owner"),
    ("number", "Processes"),
    ("", "Priority"),
    ("", "Starts"),
    ("", ""),
]


def _title(queue: Queue) -> str:
    running = f", {queue.running:,} running" if queue.running else ""
    return f"Queue: {len(queue.waiting):,} waiting{running}"


def _pause(queue: Queue) -> Markup:
    if not (callers.current().is_local or callers.current().admin):
        return Markup("")
    action, label = ("unpause", "Resume the queue") if queue.paused else ("pause", "Pause the queue")
    return Markup("""<button type="button" class="button small" data-send='{{"queue":"{}"}}'>{}</button>""").format(
        action, label
    )


def _notices(queue: Queue) -> Markup:
    notices = []
    if queue.paused:
        by = "" if queue.paused.paused_by in ("", "local") else f" by {queue.paused.paused_by}"
        notices.append(
            Markup("<b>The queue is paused</b>{}, since {}. Running runs continue; no other run starts.").format(
                by, ago(queue.paused.paused_at)
            )
        )
    if queue.overloaded:
        notices.append(Markup("{}").format(queue.overloaded))
    return each('<p class="notice" role="status">{}</p>', [(notice,) for notice in notices])


def _row(number: int, run: Run, queue: Queue) -> Markup:
    mine = callers.current().may_change(run.owner)
    cells = [
        ("number", number),
        ("name", run_link(run.id, run.name)),
        ("", run.owner),
        ("number", run.config.get("num_processes", 1)),
        ("", _priority(run) if mine else waiting.priority_word(run.priority)),
        ("starts", _starts(run, queue)),
        ("actions", _actions(number, run, queue) if mine else ""),
    ]
    drag = Markup(' draggable="true"') if mine else ""
    return Markup('<tr data-waiting="{}" class="{}"{}>{}</tr>').format(
        run.id, "held" if run.held else "", drag, each('<td class="{}">{}</td>', cells)
    )


def _priority(run: Run) -> Markup:
    options = each(
        '<option value="{}"{}>{}</option>',
        [
            (value, Markup(" selected") if value == run.priority else "", word)
            for word, value in waiting.PRIORITIES.items()
        ],
    )
    return Markup('<select data-priority="{}" aria-label="Priority of {}">{}</select>').format(
        run.id, run.name, options
    )


def _starts(run: Run, queue: Queue) -> str:
    if run.held:
        return f"paused at step {run.step:,} by its sweep" if run.at_rung else "held"
    if queue.paused:
        return "paused"
    seconds = queue.starts.get(run.id)
    if seconds is None:
        return queue.quotas.reason(run) or NONE
    return "as soon as a device is free" if seconds < 1 else f"in about {coarse(seconds)}"


def _actions(number: int, run: Run, queue: Queue) -> Markup:
    order = [other.id for other in queue.waiting]
    above = order[number - 2] if number > 1 else None
    below = order[number + 1] if number + 1 < len(order) else ""
    buttons = [
        (f'"before":"{order[0]}"', "⇈", "Move to the front", number == 1),
        (f'"before":"{above}"', "↑", "Move up", number == 1),
        (f'"before":"{below}"', "↓", "Move down", number == len(order)),
    ]
    drawn = each(
        """<button type="button" class="icon" data-send='{{"move":"{}",{}}}' aria-label="{}" title="{}"{}>{}</button>""",
        [
            (run.id, Markup(change), f"{label}: {run.name}", label, Markup(" disabled") if off else "", sign)  # noqa: S704 ids are ours
            for change, sign, label, off in buttons
        ],
    )
    hold = Markup(
        """<button type="button" class="button small" data-send='{{"hold":"{}","held":{}}}'>{}</button>"""
    ).format(run.id, "false" if run.held else "true", "Release" if run.held else "Hold")
    return drawn + hold
