"""What a browser shows of the page Runs, and what has changed since: only that is sent."""

from dataclasses import dataclass, field
from typing import Any

import gradio as gr
from markupsafe import Markup

from app.pages.common.cache import TimedCache
from app.pages.common.html import database_unreachable, user_error_html
from app.pages.runs import queue_panel
from app.pages.runs.queue_panel import queue_html
from app.pages.runs.table import Listing, listing
from app.pages.runs.view import PAGE, View
from worker.datasets import datasets
from worker.store import database, sweeps
from worker.store.database import UNREACHABLE
from worker.store.listed import run_list
from worker.store.listed.filters import FilterError


@dataclass(frozen=True)
class Shown:
    """What a browser shows: the view, its list and the queue."""

    view: View = field(default_factory=View)
    list: Listing | None = None
    queue: str = ""
    refusal: str = ""
    patches: int = 0


_lists: TimedCache[View, Listing] = TimedCache(seconds=1.0)


def render(view: View) -> Listing:
    """The list of runs for a view.

    Raises:
        FilterError: the search has an unknown field or a wrong value.
    """
    chosen_runs: dict[str, Any] = {"status": view.chosen_status, "search": view.search}
    with database.read() as session:
        total = run_list.count(session=session, **chosen_runs)
        order: dict[str, Any] = {"order_by": view.order, "descending": view.descending, "group_by": view.group}
        listed = run_list.listing(session=session, **chosen_runs, **order, limit=PAGE, offset=view.offset)
        sizes = run_list.group_sizes(session=session, group_by=view.group, **chosen_runs) if view.group else {}
        names = {item.id: item.name for item in datasets.listing(session=session)} if listed else {}
        names |= sweeps.titles(session=session, sweep_ids={run.sweep_id for run in listed if run.sweep_id})
    return listing(listed, total, dict(sizes), names, view)


def changed(view: View, before: Shown) -> list[Any]:
    """The values of `Page.outputs` (app/pages/runs/page.py) that differ from what the browser shows."""
    refusal, shown, queue = "", before.list, before.queue
    try:
        shown = _lists.get(view, lambda: render(view))
        queue = str(queue_html(queue_panel.current()))
    except FilterError as error:
        # The list of the last correct filter stays while one is being typed.
        refusal = str(user_error_html(error))
    except UNREACHABLE:
        refusal = str(database_unreachable())
    rows = shown.changes(before.list) if shown and before.list else None
    now = Shown(view, shown, queue, refusal, before.patches + (1 if rows else 0))
    patch = Markup('<template data-number="{}">{}</template>').format(now.patches, Markup(rows or ""))  # noqa: S704 escaped in table.py
    return [
        gr.skip() if now == before else now,
        gr.skip() if queue == before.queue else queue,
        gr.skip() if refusal == before.refusal else refusal,
        shown.html if shown and shown is not before.list and rows is None else gr.skip(),
        patch if rows else gr.skip(),
    ]


def forget() -> None:
    """Clears what was read before a change."""
    _lists.clear()
    queue_panel.forget()
