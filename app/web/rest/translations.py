"""REST routes for configurations of other programs."""

from fastapi import Request
from starlette.concurrency import run_in_threadpool

from app.documents.before_run import Translation
from app.web.rest.openapi import raw_body
from app.web.rest.routing import JsonRouter
from worker.runs import translation

router = JsonRouter()


@router.post("/api/imports", openapi_extra=raw_body("text/plain", "The text of the configuration."))
async def import_configuration(request: Request) -> Translation:
    """A configuration of another program, in the body, as the settings of a run, key by key. Files that it names are not read."""
    text = (await request.body()).decode("utf-8", "replace")
    translated = await run_in_threadpool(translation.translated, [("body", text)])
    return Translation.model_validate(translated.document())
