"""The attempts of a run with their settings, phases and out-of-memory reports, for the page Run."""

import time
from collections import Counter
from collections.abc import Sequence

from markupsafe import Markup, escape

from app.pages.common.html import each, pairs_table, panel
from app.words import numbers
from training.config.fields import in_words
from training.run_folder.events import OutOfMemory
from worker.store.memory_words import facts
from worker.store.tables import Attempt, Run, RunEvent, Status

Durations = dict[str, float]
_SHADES = 6  # colors of the segments, in turn
_INTERRUPTED = "training"


def attempts_html(attempts: Sequence[Attempt]) -> Markup:
    """Each attempt with its changed settings and its outcome; nothing for a single attempt with enough memory."""
    if len(attempts) < 2 and not any(attempt.out_of_memory for attempt in attempts):
        return Markup("")
    lines = [
        (attempt.number, in_words(attempt.stepped_down) or "unchanged", _outcome(attempt) + _report(attempt))
        for attempt in attempts
    ]
    heads = Markup("<thead><tr><th>Attempt</th><th>Settings</th><th>Outcome</th></tr></thead>")
    body = each("<tr><th>{}</th><td>{}</td><td>{}</td></tr>", lines)
    return panel("Attempts", Markup('<table class="attempts">{}<tbody>{}</tbody></table>').format(heads, body))


def proposal(run: Run) -> str:
    """The label of the button that resumes with settings that need less memory; empty without a proposal."""
    proposed = (run.error or {}).get("step_down") if run.status is Status.FAILED else None
    return f"Resume with {in_words(proposed)}" if proposed else ""


def _outcome(attempt: Attempt) -> Markup:
    if attempt.ended_at is None:
        return Markup("running")
    duration = numbers.duration(attempt.ended_at - attempt.started_at)
    return escape(f"{attempt.outcome} after {duration}. {attempt.reason}".strip())


def _report(attempt: Attempt) -> Markup:
    if not attempt.out_of_memory:
        return Markup("")
    pairs = pairs_table(facts(OutOfMemory(**attempt.out_of_memory)))
    return Markup("<details><summary>Memory</summary>{}</details>").format(pairs)


def durations(phases: Sequence[RunEvent], end: float) -> Durations:
    """Seconds in each phase of an attempt, in the order in which the phases first began."""
    seconds: Durations = {}
    for phase, ended in zip(phases, [*(later.time for later in phases[1:]), end], strict=True):
        seconds[phase.message] = seconds.get(phase.message, 0.0) + max(ended - phase.time, 0.0)
    return seconds


def phases_html(attempts: Sequence[Attempt], phases: Sequence[RunEvent]) -> Markup:
    """The phases of the latest attempt, and folded those of the earlier ones; nothing before the first phase."""
    lines = []
    for attempt in reversed(attempts):
        own = [phase for phase in phases if phase.attempt == attempt.number]
        if own:
            lines.append((attempt, own))
    if not lines:
        return Markup("")
    (latest, own), *earlier = lines
    folded = Markup("").join(
        Markup("<h3>Attempt {}</h3>{}").format(attempt.number, _attempt(attempt, own)) for attempt, own in earlier
    )
    details = Markup("<details><summary>Phases of {}</summary>{}</details>").format(
        numbers.plural(len(earlier), "earlier attempt"), folded
    )
    body = _attempt(latest, own) + (details if earlier else "")
    return Markup('<section class="panel phase-times" aria-label="Phases">{}</section>').format(body)


def _attempt(attempt: Attempt, phases: Sequence[RunEvent]) -> Markup:
    now = time.time()
    seconds = durations(phases, attempt.ended_at or now)
    running = None if attempt.ended_at else phases[-1]
    whole = sum(seconds.values()) or 1.0
    bar = each(
        '<i class="shade-{}" style="flex-grow:{:.4f}" title="{} {}"></i>',
        [(n % _SHADES, took / whole, name, numbers.duration(took)) for n, (name, took) in enumerate(seconds.items())],
    )
    times = Counter(phase.message for phase in phases)
    items = each(
        '<li><i class="shade-{}"></i>{} {}{}</li>',
        [
            (n % _SHADES, name, _took(name, took, running, now), _each(name, took, times[name]))
            for n, (name, took) in enumerate(seconds.items())
        ],
    )
    return Markup('<div class="phase-bar" aria-hidden="true">{}</div><ol class="phase-list">{}</ol>').format(bar, items)


def _took(name: str, took: float, running: RunEvent | None, now: float) -> Markup:
    """The time of a phase; the browser counts on in the current one."""
    if running is None or running.message != name:
        return Markup("<b>{}</b>").format(numbers.duration(took))
    return Markup('<b data-since="{}">{}</b>').format(f"{now - took:.0f}", numbers.duration(took))


def _each(name: str, took: float, times: int) -> Markup:
    """How often an interruption of training occurred, and how long one took: what a checkpoint or an evaluation costs."""
    if times < 2 or name == _INTERRUPTED:
        return Markup("")
    return Markup(" <small>{} &times; {}</small>").format(times, numbers.duration(took / times))
