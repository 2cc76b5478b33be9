"""The attempts of a run with their settings, and its out-of-memory reports, for the page Run."""

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup, escape

from app.pages.common.html import each, panel, rows
from app.words import numbers
from training.config.fields import in_words
from training.run_folder.events import OutOfMemory
from worker.store.memory_words import facts
from worker.store.tables import Attempt, Run, Status


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
    pairs: list[tuple[str, Any]] = [*facts(OutOfMemory(**attempt.out_of_memory))]
    return Markup('<details><summary>Memory</summary><table class="pairs">{}</table></details>').format(rows(pairs))
