"""Why a run failed, in one box: one cause, one message, one next action; everything else is folded. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from app.pages.common.diagnosis import changes_link, comparison_html, evidence_html
from app.pages.common.html import each
from app.pages.run.attempts import proposal
from app.words import numbers
from worker.store.tables import Attempt, LogLine, Run, damaged
from worker.supervision.failure_cause import DIVERGED, failure_cause


@dataclass(frozen=True)
class Cause:
    """What the box says: `action` is a button or link, empty where the fix needs a person."""

    title: str
    message: str
    fix: str
    action: Markup | str = ""


def failure(run: Run, attempts: Sequence[Attempt], log: Sequence[LogLine], compared: dict[str, Any] | None) -> Markup:
    """The box; nothing for a healthy run. `compared` is the run beside one that finished."""
    error = run.error
    if unread := damaged(run):
        fix = "The rest of it is here. Restore the run from an archive, or delete it."
        return _box(Cause("Damaged", f"These fields of its row cannot be read: {', '.join(unread)}.", fix))
    if not error:
        return _box(Cause(*DIVERGED)) if run.diverged else Markup("")
    return _box(_cause(run, error, attempts), _details(error, log, compared))


def _cause(run: Run, error: dict[str, Any], attempts: Sequence[Attempt]) -> Cause:
    """The cause, with the button or link that applies its fix."""
    report, proposed = attempts[-1].out_of_memory if attempts else None, proposal(run)
    cause = failure_cause(error, report, proposed=bool(proposed))
    button = Markup('<button type="button" class="button primary" data-press="step-down">{}</button>')
    action = button.format(proposed) if proposed else changes_link(cause.changes, run.id)
    return Cause(cause.title, cause.message, cause.fix, action)


def _details(error: dict[str, Any], log: Sequence[LogLine], compared: dict[str, Any] | None) -> Markup:
    diagnosis = error.get("diagnosis")
    tail = str(error.get("log_tail") or "\n".join(line.text for line in log))
    folded: list[tuple[str, Markup]] = []
    if diagnosis:
        folded.append(("Evidence", _evidence(error, diagnosis)))
        others = each("<li>{}</li>", [(fix,) for fix in diagnosis["fix"][1:]])
        folded.append(("Other fixes", Markup('<ul class="fixes">{}</ul>').format(others) if others else others))
    folded.append(("What is different from a run that finished", comparison_html(compared)))
    folded += [
        (name, _lines(text))
        for name, text in (("Last log lines", tail), ("Traceback", str(error.get("traceback") or "")))
    ]
    shown = [(summary, body) for summary, body in folded if body]
    return each("<details><summary>{}</summary>{}</details>", shown)


def _evidence(error: dict[str, Any], diagnosis: dict[str, Any]) -> Markup:
    rank = diagnosis["first_failed_rank"]
    facts = [f"Cause {diagnosis['cause']}", f"confidence {numbers.percent(diagnosis['confidence'], 0)}"]
    facts += [] if rank is None else [f"first failed rank {rank}"]
    return Markup('<p class="note">{}. {}</p>{}').format(
        ", ".join(facts), error.get("message") or "", evidence_html(diagnosis)
    )


def _lines(text: str) -> Markup:
    return Markup("<pre>{}</pre>").format(text) if text.strip() else Markup("")


def _box(cause: Cause, details: Markup | str = "") -> Markup:
    fix = Markup('<p class="first-fix">{}<span>{}</span></p>').format(cause.action, cause.fix)
    return Markup('<section class="panel failure" role="alert"><h2>{}</h2><p class="what">{}</p>{}{}</section>').format(
        cause.title, cause.message, fix if cause.fix or cause.action else "", details
    )
