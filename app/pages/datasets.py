"""The page Data sets, at /datasets: the imports of this server and the stored data sets, filtered by its address (?search=...)."""

from starlette.datastructures import QueryParams

from app.access import callers
from app.access.dataset_imports import intakes
from app.documents.dataset import matches
from app.format import dataset_text as words
from app.pages.common.view import Context, View
from training.data.row_formats import UNKNOWN
from worker.datasets import datasets
from worker.store import database, uses


def listed(query: QueryParams) -> Context:
    """The imports, and the data sets that an address asks for, newest first."""
    search, caller = query.get("search", "").strip()[:200], callers.current()
    with database.read() as session:
        return {
            "imports": intakes.all(),
            "items": [item for item in datasets.listing(session=session) if matches(item, search)],
            "uses": uses.dataset_users(session=session),
            "uploads": datasets.uploads_of(session=session, user=caller.name),
            "may_change": caller.may_change,
            "search": search,
            "words": words,
            "UNKNOWN": UNKNOWN,
        }


view = View("/datasets", "datasets.html", listed, seconds=2.0)
