"""The page Run, at /run?id=RUN_ID: one run, live. Its plots, facts and log follow streams of their own (app/web/streams)."""

import time

from starlette.datastructures import QueryParams

from app.access import callers
from app.format import run_text as words
from app.pages.common import diagnosis  # noqa: F401 what its template needs
from app.pages.common.view import Context, MissingError, View, why_missing
from app.pages.run import answers, attempts, overview, sample_groups, scores, snapshot, take_away
from app.pages.run.failure import failure
from app.pages.run.snapshot import Snapshot
from app.texts import _
from app.web.rest.results import adapter_path
from training.config.choices import Strategy
from training.config.fields import choice_label
from training.run_folder.paths import GGUF_FILE, MERGED_FILE
from worker.runs.requests import can_continue
from worker.store.jobs import submitted_id
from worker.store.runs import RunNotFound
from worker.store.tables import Request, Run

_LIVE_SECONDS, _ENDED_SECONDS = 2.0, 10.0


def shown(query: QueryParams) -> Context:
    """The run in the address with all that its page shows of it. Raises MissingError if there is no such run."""
    run_id = query.get("id", "")
    try:
        now = snapshot.read(run_id)
    except RunNotFound:
        raise MissingError(_("Run not found"), why_missing(run_id), "/", _("Show all runs")) from None
    continues = now.run.status.resumable and can_continue(now.run)
    context = _heading(now.run) | _progress(now, continues=continues) | answers.shown(now.run, query)
    context |= sample_groups.shown(now.run, query) | scores.shown(now.run, query) | take_away.shown(now.run, query)
    busy = context["evaluating"] or context["building"]
    context["seconds"] = _ENDED_SECONDS if now.run.status.ended and not busy else _LIVE_SECONDS
    return context


def _heading(run: Run) -> Context:
    caller, noun = callers.current(), words.result_noun(run.config)
    downloads = [
        (file, label)
        for file, label in ((MERGED_FILE, _("Merged model")), (GGUF_FILE, "GGUF"))
        if adapter_path(run, file)
    ]
    return {
        "name": run.name,
        "run": run,
        "status": words.status_shown(run),
        "job_id": submitted_id(run) if run.job else "",
        "allowed": caller.may_change(run.owner),
        "can_share": caller.may_share(run.owner),
        "stopping": run.request is Request.STOP,
        "noun": noun,
        "download": _("Download model") if noun == "model" else _("Download adapter"),
        "has_archive": adapter_path(run) is not None,
        "downloads": downloads,
        "strategies": [(one.value, _(choice_label(one))) for one in Strategy],
        "present": run.settings,
    }


def _progress(now: Snapshot, *, continues: bool) -> Context:
    run, error = now.run, now.run.error or {}
    problem = failure(run, now.attempts, continues=continues)
    explained, message = problem is not None and not run.damage, error.get("message") or ""
    return {
        "facts": now.facts,
        "cursor": str(now.cursor),
        "panels": now.panels,
        "continues": continues,
        "failure": problem,
        "undone": [(_(phase).capitalize(), why) for phase, why in run.undone.items()],
        "diagnosis": error.get("diagnosis"),
        "error_message": message if problem and message != problem.message else "",
        "compared": snapshot.compared(run),
        "log_tail": "" if now.has_log else error.get("log_tail") or "",
        "traceback": error.get("traceback") or "",
        "attempts": attempts.listed(now.attempts, explained=explained),
        "timelines": attempts.timelines(now.attempts, now.phases, time.time()),
        "results": overview.results(run),
        "memory": overview.memory(run),
        "data_sets": overview.data_sets(run, now.set_losses),
        "events": overview.without_repeats(now.events, explained=explained),
        "configuration": overview.configuration(run, now.dataset_names),
    }


view = View("/run", "run.html", shown)
