"""The page Playground, at /playground: the same prompt answered by a base model, adapters and checkpoints, side by side.

Its script (static/playground.js) asks the REST routes: /api/served for the models and their process, /v1 for the answers.
"""

from starlette.datastructures import QueryParams

from app.documents.playground import offered
from app.pages.common.view import Context, View


def models(_: QueryParams) -> Context:
    """The base models to choose from, until the script has read what is served."""
    return {"bases": [group.base for group in offered()]}


view = View("/playground", "playground.html", models)
