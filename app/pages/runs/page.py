"""The page Runs, at /: the queue and the history, filtered, sorted and grouped by its address (/?search=...&status=...)."""

from itertools import groupby
from typing import Any

from sqlmodel import Session
from starlette.datastructures import QueryParams

from app.access import callers
from app.documents import queue
from app.format import run_text as queue_words
from app.format import run_text as words
from app.format.dataset_text import data_names
from app.pages.common.view import Context, View
from app.pages.runs.columns import DEFAULT, Names, columns
from app.pages.runs.listing import PAGE, Listing
from training.config.fields import settings
from worker.datasets import datasets
from worker.settings import get_settings
from worker.store import database, filters, run_list, sweeps, waiting
from worker.store.filters import FilterError
from worker.store.tables import Run, Status, damaged

_REFRESH_SECONDS = 3.0
_MOST_WAITING = 100


def listed(query: QueryParams) -> Context:
    """The queue, and one page of the runs that an address asks for, or why its filter is wrong."""
    listing, caller = Listing.of(query), callers.current()
    with database.read() as session:
        try:
            shown = _runs(session, listing)
        except FilterError as error:
            shown = {"problems": error.problems, "total": 0, "groups": [], "names": {}, "repeated": set()}
        return shown | {
            "queue": queue.document(session).model_dump(mode="json"),
            "queue_words": queue_words,
            "most_waiting": _MOST_WAITING,
            "priorities": waiting.PRIORITIES,
            "priority_word": waiting.priority_word,
            "damaged": damaged,
            "words": words,
            "may_change": caller.may_change,
            "is_admin": caller.administers,
            "has_shares": get_settings().visibility == "own",
            "listing": listing,
            "page_size": PAGE,
            "columns": columns(),
            "offered": _offered(listing),
            "groupings": run_list.GROUPS,
            "statuses": [(status.value, status.value.capitalize()) for status in Status],
            "examples": filters.fields().values(),
        }


def _runs(session: Session, listing: Listing) -> Context:
    chosen: dict[str, Any] = {"status": Status(listing.status) if listing.status else None, "search": listing.search}
    order: dict[str, Any] = {"order_by": listing.order, "descending": listing.descending, "group_by": listing.group}
    total = run_list.count(session=session, **chosen)
    runs = run_list.listing(session=session, **chosen, **order, limit=PAGE, offset=listing.offset)
    sizes = run_list.group_sizes(session=session, group_by=listing.group, **chosen) if listing.group else {}
    names = {item.id: item.name for item in datasets.listing(session=session)} if runs else {}
    titles = sweeps.titles(session=session, sweep_ids={run.sweep_id for run in runs if run.sweep_id})
    grouped = groupby(runs, lambda run: _group_value(run, listing.group, names | titles))
    return {
        "problems": [],
        "total": total,
        "groups": [(value, sizes.get(value), list(members)) for value, members in grouped],
        "names": names,
        "repeated": run_list.repeated_names(session=session, names={run.name for run in runs}),
    }


def _group_value(run: Run, group: str, names: Names) -> str:
    match group:
        case "":
            return ""
        case "owner" | "status":
            return str(getattr(run, group))
        case "sweep":
            return names.get(run.sweep_id or "", "")
        case "data":
            return data_names(str(run.config.get("data", "")), names)
        case _:
            return str(run.config.get(group, ""))


def _offered(listing: Listing) -> list[str]:
    """The columns with a box in the menu: those of a run, and the settings among the default and the shown ones."""
    return [name for name in columns() if name not in settings() or name in (*DEFAULT, *listing.columns)]


view = View("/", "runs.html", listed, _REFRESH_SECONDS, remembered=("columns",))
