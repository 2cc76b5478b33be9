"""The page Playground, at /playground: the same prompt answered by a base model, adapters and checkpoints, side by side.

Its script (static/playground.js) follows a part of the page with what /api/served answers, and asks /v1 for the answers.
"""

from starlette.datastructures import QueryParams

from app.access import callers
from app.documents.playground import of_user
from app.pages.common.view import Context, View
from worker.store import database

_SECONDS, _STARTING_SECONDS = 5.0, 1.0


def models(_: QueryParams) -> Context:
    """The models to choose from, and what is served."""
    with database.read() as session:
        now = of_user(session, callers.current().name)
    is_starting = bool(now.queue) or (now.served is not None and now.served.state in ("waiting", "starting"))
    return {
        "bases": [group.base for group in now.offered],
        "served": now.model_dump_json(exclude={"served": {"age_seconds"}, "queue": {"__all__": {"age_seconds"}}}),
        "seconds": _STARTING_SECONDS if is_starting else _SECONDS,
    }


view = View("/playground", "playground.html", models)
