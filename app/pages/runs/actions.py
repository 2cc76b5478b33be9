"""Actions on selected runs: at once, after a confirmation, or with a form. Long ones run in steps and show their progress."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from markupsafe import Markup

from app.access import bulk, callers, changes, sharing
from app.access.bulk import Outcome
from app.pages.common.html import bar, each
from app.words.numbers import plural
from training.units import byte_size
from worker.machine.sizes import size_of
from worker.settings import get_settings
from worker.store import database, runs
from worker.store.runs import RunNotFound
from worker.store.tables import Run, Status

_STEP_SECONDS = 0.7
_NAMED = 8

Change = Callable[[str], object]

# The word for the outcome, and the change of each run.
ACTIONS: dict[str, tuple[str, Change]] = {
    "pin": ("pinned", partial(changes.edit, pinned=True)),
    "unpin": ("unpinned", partial(changes.edit, pinned=False)),
    "archive": ("archived", partial(changes.edit, archived=True)),
    "unarchive": ("returned from the archive", partial(changes.edit, archived=False)),
    "stop": ("asked to stop", changes.stop),
    "delete": ("deleted", changes.delete),
}
CONFIRMED = {"stop": "Stop", "delete": "Delete"}


@dataclass(frozen=True)
class Work:
    """An action on many runs, and how far it is."""

    action: str = ""
    left: tuple[str, ...] = ()
    total: int = 0
    outcome: Outcome = field(default_factory=Outcome)

    @property
    def ended(self) -> bool:
        """True if nothing is left to do."""
        return not self.left


def begun(action: str, run_ids: list[str]) -> Work:
    """The work of an action on these runs."""
    unique = tuple(dict.fromkeys(run_ids))
    return Work(action, unique, len(unique))


def advanced(work: Work) -> Work:
    """Does what can be done within less than a second."""
    _, change = ACTIONS[work.action]
    until, left, outcome = time.monotonic() + _STEP_SECONDS, list(work.left), replace(work.outcome)
    while left and time.monotonic() < until:
        done = bulk.each([left.pop(0)], change)
        outcome = Outcome(outcome.done + done.done, outcome.refused | done.refused)
    return replace(work, left=tuple(left), outcome=outcome)


def progress_html(work: Work) -> Markup:
    """How far the work is."""
    done = work.total - len(work.left)
    label = f"{done:,} of {plural(work.total, 'run')}"
    return Markup("<p>{}</p>{}").format(label, bar(done / max(work.total, 1), label=label, classes="wide"))


def outcome_html(said: str, outcome: Outcome) -> Markup:
    """What was done, and what was refused with the reasons."""
    gone = " ".join(outcome.done) if said == ACTIONS["delete"][0] else ""
    done = Markup('<p class="notice" role="status" data-gone="{}">{} {}.</p>').format(
        gone, plural(len(outcome.done), "run"), said
    )
    refused = each("<li><code>{}</code> {}</li>", list(outcome.refused.items())[:_NAMED])
    if not refused:
        return done
    alert = Markup('<div class="alert" role="alert"><b>{} unchanged.</b><ul>{}</ul></div>').format(
        plural(len(outcome.refused), "run"), refused
    )
    return (done if outcome.done else Markup("")) + alert


def question(action: str, run_ids: list[str]) -> tuple[Markup, bool]:
    """What the dialog says before an action, and whether anything can be done."""
    chosen = _existing(run_ids)
    return _stop_question(chosen) if action == "stop" else _delete_question(chosen)


def _stop_question(chosen: list[Run]) -> tuple[Markup, bool]:
    active = [run for run in chosen if not run.status.ended]
    running = sum(run.status is Status.RUNNING for run in active)
    said = Markup(
        "<h2>Stop {}?</h2><p>{} running: each saves a checkpoint after the current step and exits; Resume continues from it. "
        "{} queued: removed from the queue.</p>{}"
    ).format(plural(len(active), "run"), f"{running:,}", f"{len(active) - running:,}", _named(active))
    return said if active else _nothing("None of the selected runs is queued or running."), bool(active)


def _delete_question(chosen: list[Run]) -> tuple[Markup, bool]:
    ended = [run for run in chosen if run.status.ended]
    kept = len(chosen) - len(ended)
    size = sum(size_of(get_settings().runs_dir / run.id).bytes for run in ended)
    stay = "Not deleted, because queued or running: {}. Stop them first."
    active = Markup("<p>{}</p>").format(stay.format(plural(kept, "run"))) if kept else Markup("")
    results = sum(run.has_result for run in ended)
    said = Markup(
        "<h2>Delete {}?</h2><p>This frees <b>{}</b> on disk. Settings, metrics, log and checkpoints are lost{}. "
        "This cannot be undone; archiving hides runs and keeps everything.</p>{}{}"
    ).format(
        plural(len(ended), "run"),
        byte_size(size),
        f", and the results of {plural(results, 'finished run')}" if results else "",
        active,
        _named(ended),
    )
    return said if ended else _nothing("All selected runs are queued or running. Stop them first."), bool(ended)


def _nothing(message: str) -> Markup:
    return Markup("<h2>Nothing to do</h2><p>{}</p>").format(message)


def _named(chosen: list[Run]) -> Markup:
    items = each("<li>{} <code>{}</code></li>", [(run.name, run.id) for run in chosen[:_NAMED]])
    more = Markup("<li>and {} more</li>").format(len(chosen) - _NAMED) if len(chosen) > _NAMED else Markup("")
    return Markup('<ul class="named">{}{}</ul>').format(items, more)


def _existing(run_ids: list[str]) -> list[Run]:
    found = []
    with database.read() as session:
        for run_id in dict.fromkeys(run_ids):
            try:
                found.append(runs.get(session=session, run_id=run_id))
            except RunNotFound:
                continue
    return found


def described(run_ids: list[str]) -> dict[str, Any]:
    """The values of the form Edit: name, notes and users of a single run, and the tags that all selected runs have."""
    chosen = _existing(run_ids)
    shared = set.intersection(*(set(run.tags) for run in chosen)) if chosen else set()
    single = chosen[0] if len(chosen) == 1 else None
    return {
        "ids": [run.id for run in chosen],
        "name": single.name if single else "",
        "notes": single.notes if single else "",
        "tags": ", ".join(sorted(shared)),
        "users": ", ".join(_users(single)) if single else "",
    }


def _users(run: Run) -> list[str]:
    return sharing.users("run", run.id) if callers.current().may_change(run.owner) else []


def describe(values: dict[str, Any], name: str, tags: str, notes: str, users: str = "") -> Outcome:
    """Stores the form: name, notes and users of a single run; tags that were added or removed in it, for all its runs."""
    before = {tag.strip() for tag in values["tags"].split(",") if tag.strip()}
    after = {tag.strip().lower() for tag in tags.split(",") if tag.strip()}
    if len(values["ids"]) == 1:
        shared = None if users == values["users"] else users.split(",")
        return bulk.each(values["ids"], partial(changes.edit, name=name, notes=notes, tags=after, users=shared))
    return bulk.each(values["ids"], partial(changes.edit, add_tags=after - before, remove_tags=before - after))
