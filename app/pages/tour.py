"""The page Tour, at /start: what Lathe does in five steps, each with a button that does it, and which are done here."""

from starlette.datastructures import QueryParams

from app.documents import tour
from app.pages.common.view import Context, View
from worker.store import database


def steps(_: QueryParams) -> Context:
    """The steps with what is done."""
    with database.read() as session:
        return {"tour": tour.document(session)}


view = View("/start", "tour.html", steps, seconds=3.0)
