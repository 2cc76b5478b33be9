"""Why a run failed: one cause, one message, one next action. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from app.format import numbers
from app.pages.run.attempts import proposal
from app.texts import _
from training.rules.optimizers import lower_rate
from worker.store.tables import Attempt, Run, Status
from worker.supervision.run_diagnosis import DIVERGED, failure_cause


@dataclass(frozen=True)
class Failure:
    """What the box says: `proposal` is the label of a button that resumes the run, `changes` are settings for a new run."""

    title: str
    message: str
    fix: str
    proposal: str = ""
    changes: dict[str, Any] = field(default_factory=dict)
    facts: str = ""
    """How sure the diagnosis is, and the rank that failed first."""


def failure(run: Run, attempts: Sequence[Attempt], *, continues: bool) -> Failure | None:
    """The failure; None for a healthy run. `continues`: it has a checkpoint, from which Resume continues."""
    if run.damage:
        fix = _("The rest of it is here. Restore the run from an archive, or delete it.")
        message = _("These fields of its row cannot be read: {fields}.").format(fields=run.damage)
        return Failure(_("Damaged"), message, fix)
    if run.error:
        return _explained(run.error, attempts, proposal(run, continues=continues))
    return _diverged(run, attempts) if run.status is Status.DIVERGED or run.diverged else None


def _explained(error: dict[str, Any], attempts: Sequence[Attempt], proposed: str) -> Failure:
    report = attempts[-1].out_of_memory if attempts else None
    cause = failure_cause(error, report, proposed=bool(proposed))
    return Failure(cause.title, cause.message, cause.fix, proposed, cause.changes, _certainty(error.get("diagnosis")))


def _diverged(run: Run, attempts: Sequence[Attempt]) -> Failure:
    """The step at which the loss was no longer finite, and a run with a lower learning rate."""
    title, message, fix = DIVERGED
    reason = attempts[-1].reason if attempts and run.status is Status.DIVERGED else ""
    if not run.status.ended or not run.is_configured:
        return Failure(title, reason or message, fix)
    rate, why = lower_rate(run.used)
    return Failure(title, reason or message, f"{fix} {why}", changes={"learning_rate": rate})


def _certainty(diagnosis: dict[str, Any] | None) -> str:
    if not diagnosis:
        return ""
    rank = diagnosis["first_failed_rank"]
    share = numbers.percent(diagnosis["confidence"], 0)
    if rank is None:
        return _("Confidence {share}.").format(share=share)
    return _("Confidence {share}, first failed rank {rank}.").format(share=share, rank=rank)
