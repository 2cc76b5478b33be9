"""Every form of a run's result, and snippets that use it, on the page Run."""

from itertools import groupby
from typing import Any

from starlette.datastructures import QueryParams

from app.documents.results.outputs import Output, outputs, ruined, used_by_snippets
from app.format.run_text import building, difference, figures, result_noun, verdict
from app.format.snippets import Snippet, snippets
from app.pages.common.cache import TimedCache
from app.texts import _
from app.web.addresses import is_page
from training.parts import named
from worker.results.verification import latest
from worker.store import builds, database
from worker.store.tables import Run

_SECONDS = 20.0  # snippets depend on the tokenizer's files

_snippets: TimedCache[tuple[str, int, str], list[Snippet]] = TimedCache(_SECONDS)


def shown(run: Run, query: QueryParams) -> dict[str, Any]:
    """The forms of an ended run's result, how they compare with the trained model, and the snippets."""
    if not run.status.ended:
        return {"outputs": [], "snippets": [], "parity": None, "can_be_tried": False, "building": False, "ruined": ""}
    compared = latest(run) if run.has_result else None
    with database.read() as session:
        requested = builds.of_run(session=session, run_id=run.id)
    forms = groupby(outputs(run, requested), key=lambda one: one.group or one.name)
    return {
        "outputs": [_chosen(list(group), query) for _, group in forms],
        "ruined": ruined(run) if run.has_result else "",
        "building": any(not item.status.ended for item in requested),
        "snippets": _snippets.get((run.id, run.attempt, run.name), lambda: _all_snippets(run)) if run.has_result else [],
        "parity": compared and {
            "rows": compared["rows"],
            "forms": [(name, verdict(form), figures(form), difference(form)) for name, form in compared["forms"].items()],
        },
        "can_be_tried": is_page("/playground") and len(named("worker.serving.models:offered")(run)) > 1,  # not the base alone
        "build_words": building,
    }  # fmt: skip


def _chosen(variants: list[Output], query: QueryParams) -> dict[str, Any]:
    """The variant of a form that the query names as `field`, and what to choose from: (name, text), empty for a single one.

    Without a name, one that is being built is shown.
    """
    names = {one.name.removeprefix(one.group).strip(): one for one in variants}
    field = "gguf" if variants[0].group == "GGUF" else "checkpoint"
    active = next((one for one in variants if one.build and one.build.status in ("queued", "running")), variants[0])
    chosen = names.get(query[field], active) if field in query else active
    choices = [(name, name or _("as trained")) for name in names] if len(variants) > 1 else []
    return {"shown": chosen, "field": field, "choices": choices}


def _all_snippets(run: Run) -> list[Snippet]:
    with database.read() as session:
        used = used_by_snippets(session, run)
    push = Snippet(
        _("Push to a hub"),
        "sh",
        _(
            "Uploads the {noun} with its card to a private repository; add --public for a public one. "
            "HF_TOKEN must be set to a token with write access."
        ).format(noun=_(result_noun(run.config))),
        f"lathe push {run.id} OWNER/NAME\n",
    )
    return [*snippets(used), push] if used else []
