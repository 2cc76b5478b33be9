"""What the page Run shows of memory that ran out: the attempts with their settings, and the report of the rank."""

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from app import text
from app.pages.parts import each, panel, rows
from training.events import OutOfMemory
from training.step_down import in_words
from worker.memory_words import facts
from worker.models import Attempt, Run, Status


def attempts(found: Sequence[Attempt]) -> Markup:
    """Every start with the settings that differ from those asked for and how it ended; nothing for a first that goes well."""
    if len(found) < 2 and not any(one.out_of_memory for one in found):
        return Markup("")
    lines = [
        (one.number, in_words(one.stepped_down) or "as asked", Markup("{}{}").format(_ending(one), _report(one)))
        for one in found
    ]
    heads = Markup("<thead><tr><th>Attempt</th><th>Settings</th><th>How it ended</th></tr></thead>")
    body = each("<tr><th>{}</th><td>{}</td><td>{}</td></tr>", lines)
    return panel("Attempts", Markup('<table class="attempts">{}<tbody>{}</tbody></table>').format(heads, body))


def proposal(run: Run) -> str:
    """What the button says that resumes with less memory; empty where nothing is proposed."""
    proposed = (run.error or {}).get("step_down") if run.status is Status.FAILED else None
    return f"Resume with {in_words(proposed)}" if proposed else ""


def _ending(one: Attempt) -> str:
    if one.ended_at is None:
        return "under way"
    after = text.duration(one.ended_at - one.started_at)
    return f"{one.outcome} after {after}. {one.reason}".strip()


def _report(one: Attempt) -> Markup:
    if not one.out_of_memory:
        return Markup("")
    pairs: list[tuple[str, Any]] = [*facts(OutOfMemory(**one.out_of_memory))]
    return Markup('<details><summary>Memory</summary><table class="pairs">{}</table></details>').format(rows(pairs))
