"""The page Sweeps, at /sweeps: all sweeps with their progress and best configuration."""

from starlette.datastructures import QueryParams

from app.documents.sweep import brief
from app.format import sweep_text as words
from app.pages.common.view import Context, View
from worker.store import database, sweeps


def listed(_: QueryParams) -> Context:
    """All sweeps, the newest first."""
    with database.read() as session:
        listed = [brief(session, sweep).model_dump(mode="json") for sweep in sweeps.listing(session=session)]
    return {"sweeps": listed, "words": words}


view = View("/sweeps", "sweeps.html", listed)
