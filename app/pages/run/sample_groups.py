"""The samples that a run drew in a step, by prompt, on the page Run."""

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.datastructures import QueryParams

from app.documents.results import samples as document
from app.pages.run.answers import page_of
from app.texts import _
from training.config.task import traits_of
from worker.store import database, samples
from worker.store.samples import ORDERS, Order, Wanted
from worker.store.tables import Run

PAGE_PROMPTS = 5


def shown(run: Run, query: QueryParams) -> dict[str, Any]:
    """A page of the samples of the step in the query, by default of the last one that is kept."""
    task = traits_of(run.config)
    if not task.samples:
        return {"samples": None}
    with database.read() as session:
        steps = samples.steps(session=session, run_id=run.id)
        wanted = _wanted(steps, query)
        total = samples.count(session=session, run_id=run.id, wanted=wanted)
        page = page_of(total, query.get("samples_page", ""), PAGE_PROMPTS)
        part = document.part(session, run.id, wanted, offset=page["first"] - 1, limit=PAGE_PROMPTS)
    rewarded = task.rewards_samples
    shown = page | {"groups": part.groups, "wanted": wanted, "rewarded": rewarded} | _steps(steps, wanted.step)
    scores = {name: name if rewarded else _("Log-probability of a token") for name in part.rewards}
    return {"samples": shown | {"scores": scores, "orders": _orders(scores, rewarded=rewarded)}}


def _wanted(steps: Sequence[int], query: QueryParams) -> Wanted:
    given, only = query.get("samples_step", ""), query.get("samples_only", "")
    order, _colon, reward = query.get("samples_order", "").partition(":")
    step = (
        min(steps, key=lambda one: abs(one - int(given))) if steps and given.isdecimal() else max(steps, default=None)
    )
    search = query.get("samples_search", "").strip()[:200]
    by: Order = next((one for one in ORDERS if one == order), "drawn")
    return Wanted(None if "samples_every" in query else step, search, only == "cut_off", only == "equal", by, reward)


def _steps(steps: Sequence[int], chosen: int | None) -> dict[str, Any]:
    """The steps that are kept: the last one, and those before and after the chosen one."""
    return {
        "last_step": max(steps, default=None),
        "before": max((step for step in steps if chosen is not None and step < chosen), default=None),
        "after": min((step for step in steps if chosen is not None and step > chosen), default=None),
    }


def _orders(scores: Mapping[str, str], *, rewarded: bool) -> list[tuple[str, str]]:
    """The orders of prompts: by the mean of the total, or of a score, of which the labels are given."""
    by = ([("", _("Total"))] if rewarded else []) + [(f":{name}", label) for name, label in scores.items()]
    ways = (("lowest", _("{reward}, lowest first")), ("highest", _("{reward}, highest first")))
    return [("", _("As drawn")), *((f"{way}{key}", text.format(reward=name)) for key, name in by for way, text in ways)]
