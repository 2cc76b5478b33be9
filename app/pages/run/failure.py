"""Why a run failed, in one box: one cause, one message, one next action; everything else is folded. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from app.pages.common.diagnosis import changes_link, comparison_html, evidence_html
from app.pages.common.html import each
from app.pages.run.memory import proposal
from app.words import numbers
from worker.store.tables import Attempt, LogLine, Run

_DIVERGED = (
    "Training diverged",
    "The loss is NaN or infinite.",
    "Lower the learning rate or lengthen the warmup.",
)


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
    if not error:
        return _box(Cause(*_DIVERGED)) if run.diverged else Markup("")
    return _box(_cause(run, error, attempts), _details(error, log, compared))


def _cause(run: Run, error: dict[str, Any], attempts: Sequence[Attempt]) -> Cause:
    """The cause from the ranks' memory report if there is one, then from the diagnosis, then from the error itself."""
    message, fix = str(error.get("message") or "The run failed."), str(error.get("fix") or "")
    report = attempts[-1].out_of_memory if attempts else None
    if proposed := proposal(run):
        button = Markup('<button type="button" class="button primary" data-press="step-down">{}</button>')
        return Cause(
            _memory_title(report, message), message, "The global batch size stays the same.", button.format(proposed)
        )
    if report:
        return Cause(_memory_title(report, message), message, fix)
    if diagnosis := error.get("diagnosis"):
        explanation = str(diagnosis["explanation"]).removeprefix(diagnosis["title"]).strip() or message
        link = changes_link(diagnosis["changes"], run.id)
        first = next(iter(diagnosis["fix"]), fix)
        return Cause(str(diagnosis["title"]).rstrip("."), explanation, first, link)
    phase, rank = error.get("phase"), error.get("rank")
    where = f" while {phase}" if phase else ""
    return Cause(f"Failed{where}{'' if rank is None else f' on rank {rank}'}", message, fix)


def _memory_title(report: dict[str, Any] | None, message: str) -> str:
    """GPU memory or a memory limit, by the device that the rank reported."""
    if report is None:
        return message.partition(" on rank")[0].partition(".")[0]
    return "Out of GPU memory" if report.get("device") == "cuda" else "Memory limit exceeded"


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
