"""REST routes of diagnoses: of a run, of a log, and the shared ones."""

import io
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool

from app.access import callers, changes
from app.documents import diagnoses
from app.documents.diagnoses import Recent
from app.web import log_diagnosis
from app.web.rest.openapi import raw_body
from app.web.rest.routing import Answer, MicroBatch, answers
from worker.runs import shared_diagnoses
from worker.supervision import run_diagnosis


class DiagnosisAnswer(Answer):
    """Why a run failed. `confidence` is 0 to 1; `evidence` are lines of the log; `changes` are settings that fix the run."""

    cause: str
    title: str
    confidence: float
    explanation: str
    evidence: list[str]
    evidence_lines: list[int]
    first_failed_rank: int | None
    fix: list[str]
    changes: dict[str, Any]
    inferred: dict[str, Any]


class SharedIn(Answer):
    """Where a diagnosis was shared: its id, and the path of its page on this server."""

    id: str
    address: str


class LogDiagnosis(DiagnosisAnswer):
    """The diagnosis of a log; `shared`, if it was asked for, tells where it is."""

    shared: SharedIn | None = None


class Compared(Answer):
    """The failed run beside the finished one most like it: settings that differ as [its, the other's], and new log lines."""

    run: str
    name: str
    shared: list[str]
    settings: dict[str, list[Any]]
    lines: list[Any]


class RunDiagnosis(DiagnosisAnswer):
    """The diagnosis of a run, and the run beside a finished one (null if there is none like it)."""

    compared: Compared | None


class SharedDiagnosisAnswer(Answer):
    """A shared diagnosis with its log, both without secrets."""

    id: str
    owner: str
    created_at: float
    diagnosis: DiagnosisAnswer
    log: str
    address: str


class RecentDiagnoses(Answer):
    """The last ten diagnoses of failed runs and shared logs, newest first."""

    diagnoses: list[Recent]


router = APIRouter()


@router.get("/api/runs/{run_id}/diagnosis", **answers(RunDiagnosis))
def diagnose_run(run_id: str, model: str | None = None, micro_batch: MicroBatch = None) -> dict[str, Any]:
    """Why a run failed: cause, evidence and fix, from its log (docs/diagnosis.md)."""
    shape = log_diagnosis.dimensions(model)
    return run_diagnosis.of_run(run_id, dimensions=shape, micro_batch=micro_batch)


@router.get("/api/diagnoses", **answers(RecentDiagnoses))
def list_diagnoses() -> dict[str, Any]:
    """The last ten diagnoses of failed runs and shared logs, newest first."""
    return {"diagnoses": [vars(one) for one in diagnoses.recent()]}


@router.post(
    "/api/diagnoses", openapi_extra=raw_body("text/plain", "The log of the training run."), **answers(LogDiagnosis)
)
async def diagnose_log(
    request: Request,
    model: str | None = None,
    micro_batch: MicroBatch = None,
    share: Annotated[bool, Query(description="Also store the diagnosis with the log, both without secrets.")] = False,
) -> dict[str, Any]:
    """Why a run failed, from its log in the body. `model` is a folder or config.json on the server, `micro_batch` the rows per
    forward pass. Shared diagnoses can be read by everybody with access to this server.

    Raises:
        ConfigError: the body is empty, or the model cannot be read; answered with 422.
        TooManyShared: the caller has to delete a shared diagnosis first; answered with 409.
    """
    log = io.BytesIO(await request.body())
    return await run_in_threadpool(_diagnosed, log, model, micro_batch, share)


@router.get("/api/diagnoses/{diagnosis_id}", **answers(SharedDiagnosisAnswer))
def show_diagnosis(diagnosis_id: str) -> dict[str, Any]:
    """A shared diagnosis with its log."""
    return diagnoses.document(shared_diagnoses.get(diagnosis_id))


@router.delete("/api/diagnoses/{diagnosis_id}", status_code=204)
def delete_diagnosis(diagnosis_id: str) -> None:
    """Deletes a shared diagnosis with its log; its link stops working."""
    changes.delete_shared_diagnosis(diagnosis_id)


def _diagnosed(log: io.BytesIO, model: str | None, micro_batch: int | None, share: bool) -> dict[str, Any]:
    diagnosis, text = log_diagnosis.with_log(log, model, micro_batch)
    if not share:
        return diagnosis
    shared = shared_diagnoses.share(diagnosis=diagnosis, log=text, owner=callers.current().name)
    return diagnosis | {"shared": {"id": shared.id, "address": diagnoses.address(shared.id)}}
