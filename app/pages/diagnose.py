"""The page Diagnose, at /diagnose: why a run failed, from its pasted or uploaded log.

The form is posted to the page, which answers with the diagnosis. Lathe stores the log only if the diagnosis is shared; it is then
at /diagnose?id=ID.
"""

import io
import re
from contextlib import suppress
from typing import BinaryIO

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, QueryParams, UploadFile

from app.access import callers, users
from app.documents import diagnoses
from app.documents.diagnoses import Recent
from app.documents.tour import Step
from app.pages.common import diagnosis  # noqa: F401 what the template calls
from app.pages.common.view import Context, MissingError, View
from app.texts import _
from app.web.rest.diagnoses import with_log
from app.web.security import BODY_LIMIT
from training.config.fields import ConfigError
from training.errors import Problem, UserError
from worker.diagnosis import shared_diagnoses
from worker.diagnosis.shared_diagnoses import DiagnosisNotFound
from worker.store.database import UNREACHABLE

_EXAMPLE = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "train.py", line 71, in <module>
[rank1]:     trainer.train()
[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 12.43 GiB. GPU 1 has a total capacity of 31.74 GiB ..."""
_FIELDS = ("log", "model", "micro_batch")
_MOST_FIELDS = len(_FIELDS) + 1  # and `share`: they are kept in memory


def opened(query: QueryParams) -> Context:
    """The page with the shared diagnosis that the address names, if it names one.

    Raises:
        MissingError: there is no such diagnosis.
    """
    shared = None
    if diagnosis_id := query.get("id"):
        try:
            shared = shared_diagnoses.get(diagnosis_id)
        except DiagnosisNotFound as error:
            raise MissingError(_("Shared diagnosis not found"), str(error), "/diagnose", _("Diagnose a log")) from None
    return {
        "example": _EXAMPLE,
        "typed": dict.fromkeys(_FIELDS, "") | ({"log": _EXAMPLE} if query.get("example") == "1" else {}),
        "problems": [],
        "diagnosed": None,
        "shared": shared,
        "may_delete": shared is not None and callers.current().may_change(shared.owner),
        "deleted": query.get("deleted") == "1",
        "recent": _recent(),
    }


def _recent() -> list[Recent] | None:
    """The latest diagnoses; None if the database is unreachable, which a log of the form does not need."""
    with suppress(*UNREACHABLE):
        return diagnoses.recent()
    return None


def answered(form: FormData) -> Context:
    """The page with the diagnosis of the log in a form, or with the problems of its fields."""
    typed = {name: value if isinstance(value := form.get(name), str) else "" for name in _FIELDS}
    context = opened(QueryParams()) | {"typed": typed}
    try:
        found, text = with_log(_log(form), typed["model"].strip() or None, _rows(typed["micro_batch"]))
        with suppress(*UNREACHABLE):
            users.add_tour_step(Step.DIAGNOSE)
        if not form.get("share"):
            return context | {"diagnosed": found}
        return context | {"shared": shared_diagnoses.share(diagnosis=found, log=text, owner=callers.current().name)}
    except UserError as error:
        return context | {"problems": error.problems}
    except OSError as error:
        return context | {
            "problems": [Problem("log", None, _("could not be stored: {reason}.").format(reason=error.strerror), "")]
        }


def _log(form: FormData) -> BinaryIO:
    file = form.get("file")
    if isinstance(file, UploadFile) and file.filename:
        return file.file
    return io.BytesIO(str(form.get("log", "")).encode("utf-8", "replace"))


def _rows(batch: str) -> int | None:
    """The micro batch size as a number. Raises ConfigError if it is not a whole number from 1 up."""
    typed = batch.strip()
    if typed and not re.fullmatch(r"[1-9][0-9]{0,8}", typed):
        fix = _("Enter the rows per forward pass, or leave it empty.")
        raise ConfigError([Problem("micro_batch", typed, _("is not a whole number from 1 up."), fix)])
    return int(typed) if typed else None


view = View("/diagnose", "diagnose.html", opened)
posted = APIRouter(include_in_schema=False)


@posted.post(view.path, response_model=None)
async def post(request: Request) -> Response:
    """The page with the diagnosis of the posted log; a shared one is at its address."""
    async with request.form(max_files=1, max_fields=_MOST_FIELDS, max_part_size=BODY_LIMIT) as form:
        context = await run_in_threadpool(answered, form)
    if (shared := context["shared"]) is not None:
        return RedirectResponse(diagnoses.address(shared.id), 303)
    return await run_in_threadpool(view.whole, request, lambda: context)
