"""The page Runs, at /: the queue and the history, filtered, sorted and grouped by its address (/?search=...&status=...)."""

from collections.abc import Sequence

from sqlmodel import Session
from starlette.datastructures import QueryParams

from app.access import callers
from app.documents import queue
from app.documents.comparison.document import configured
from app.documents.run import grouped
from app.format import run_text as words
from app.format.numbers import capitalized
from app.pages.common import grouping
from app.pages.common.view import Context, View
from app.pages.runs.columns import DEFAULT, columns, with_varying
from app.pages.runs.listing import PAGE, Listing
from app.texts import _
from training.config.fields import settings
from worker.datasets import datasets
from worker.settings import get_settings
from worker.store import database, filters, run_list, waiting
from worker.store.filters import FilterError
from worker.store.tables import Status

_REFRESH_SECONDS = 3.0
_MOST_WAITING = 100


def listed(query: QueryParams) -> Context:
    """The queue, and one page of the runs that an address asks for, or why its filter is wrong."""
    listing, caller = Listing.of(query), callers.current()
    with database.read() as session:
        try:
            shown = _runs(session, listing)
        except FilterError as error:
            shown = {
                "problems": error.problems,
                "total": 0,
                "runs": {},
                "groupings": grouping.choices([], listing.group),
                "shown": listing.columns,
            }
        return shown | {
            "queue": queue.document(session).model_dump(mode="json"),
            "most_waiting": _MOST_WAITING,
            "priorities": waiting.PRIORITIES,
            "priority_word": waiting.priority_word,
            "words": words,
            "may_change": caller.may_change,
            "is_admin": caller.administers,
            "has_shares": get_settings().visibility == "own",
            "listing": listing,
            "page_size": PAGE,
            "columns": columns(),
            "offered": _offered(shown["shown"]),
            "statuses": [(status.value, capitalized(_(status.value))) for status in Status],
            "examples": filters.fields().values(),
        }


def _runs(session: Session, listing: Listing) -> Context:
    query = run_list.Query(
        Status(listing.status) if listing.status else None,
        listing.search,
        order_by=listing.order,
        descending=listing.descending,
        limit=PAGE,
        offset=listing.offset,
    )
    if listing.group:
        runs, groups = grouped(session, listing.group, query)
    else:
        runs, groups = run_list.listing(session=session, query=query), []
    differing = [line.key for line in configured(runs, {}, everything=False)]
    return {
        "shown": with_varying(runs, differing) if listing.columns == DEFAULT else listing.columns,
        "problems": [],
        "total": run_list.count(session=session, query=query),
        "runs": {run.id: run for run in runs},
        "groups": groups,
        "groupings": grouping.choices(differing, listing.group),
        "names": {item.id: item.name for item in datasets.listing(session=session)} if runs else {},
        "repeated": run_list.repeated_names(session=session, names={run.name for run in runs}),
    }


def _offered(shown: Sequence[str]) -> list[str]:
    """The columns with a box in the menu: those of a run, and the settings among the default and the shown ones."""
    return [name for name in columns() if name not in settings() or name in (*DEFAULT, *shown)]


view = View("/", "runs.html", listed, _REFRESH_SECONDS, remembered=("columns",))
