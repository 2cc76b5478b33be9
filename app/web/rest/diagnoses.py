"""REST routes of diagnoses: of a run, of a log, and the shared ones."""

import io
import json
from typing import Annotated, Any, BinaryIO

from fastapi import Query, Request
from starlette.concurrency import run_in_threadpool

from app.access import callers
from app.access.permissions import check_change
from app.documents import diagnoses
from app.documents.diagnoses import LogDiagnosis, RecentDiagnoses, RunDiagnosis, SharedDiagnosisAnswer, SharedIn
from app.web.rest.openapi import raw_body
from app.web.rest.routing import JsonRouter, MicroBatch, PathQuery
from training.config.fields import ConfigError
from training.errors import Problem
from training.model_info.config_json import Dimensions, read_dimensions
from worker.diagnosis import shared_diagnoses
from worker.diagnosis.log_file import Excerpt, read_log
from worker.machine import programs
from worker.runs.settle import find_model
from worker.supervision import run_diagnosis

router = JsonRouter()


@router.get("/api/runs/{run_id}/diagnosis")
def diagnose_run(run_id: str, model: PathQuery = None, micro_batch: MicroBatch = None) -> RunDiagnosis:
    """Why a run failed: cause, evidence and fix, from its log (docs/diagnosis.md)."""
    diagnosis = run_diagnosis.of_run(run_id, dimensions=_dimensions(model), micro_batch=micro_batch)
    return RunDiagnosis.model_validate(diagnosis)


@router.get("/api/diagnoses")
def list_diagnoses() -> RecentDiagnoses:
    """The last ten diagnoses of failed runs and shared logs, newest first."""
    return RecentDiagnoses(diagnoses=diagnoses.recent())


@router.post("/api/diagnoses", openapi_extra=raw_body("text/plain", "The log of the training run."))
async def diagnose_log(
    request: Request,
    model: PathQuery = None,
    micro_batch: MicroBatch = None,
    share: Annotated[bool, Query(description="Also store the diagnosis with the log, both without secrets.")] = False,
) -> LogDiagnosis:
    """Why a run failed, from its log in the body. `model` is a folder or config.json on the server, `micro_batch` the rows per
    forward pass. Shared diagnoses can be read by everybody with access to this server.
    """
    log = io.BytesIO(await request.body())
    return await run_in_threadpool(_diagnosed, log, model, micro_batch, share)


@router.get("/api/diagnoses/{diagnosis_id}")
def show_diagnosis(diagnosis_id: str) -> SharedDiagnosisAnswer:
    """A shared diagnosis with its log."""
    return diagnoses.document(shared_diagnoses.get(diagnosis_id))


@router.delete("/api/diagnoses/{diagnosis_id}", status_code=204)
def delete_diagnosis(diagnosis_id: str) -> None:
    """Deletes a shared diagnosis with its log; its link stops working."""
    shared = shared_diagnoses.get(diagnosis_id)
    check_change("diagnosis", shared.id, shared.owner)
    shared_diagnoses.delete(shared.id)


def _diagnosed(log: io.BytesIO, model: str | None, micro_batch: int | None, share: bool) -> LogDiagnosis:
    diagnosis, text = with_log(log, model, micro_batch)
    if not share:
        return LogDiagnosis(**diagnosis)
    shared = shared_diagnoses.share(diagnosis=diagnosis, log=text, owner=callers.current().name)
    return LogDiagnosis(**diagnosis, shared=SharedIn(id=shared.id, address=diagnoses.address(shared.id)))


def with_log(log: BinaryIO, model: str | None = None, micro_batch: int | None = None) -> tuple[dict[str, Any], str]:
    """The diagnosis of a log as a JSON value (`worker.diagnosis.diagnosis.Diagnosis.document`), and the text of what was read.

    Raises:
        ConfigError: the log is empty or takes too long, or the caller may not read `model`.
        ModelError: `model` is not a readable model folder or config.json.
    """
    parts = read_log(log)
    if not any(part.text.strip() for part in parts):
        raise ConfigError([Problem("log", None, "is empty.", "Send the output of the training run.")])
    text = "\n... lines left out ...\n".join(part.text for part in parts)
    return _read(parts, _dimensions(model), micro_batch), text


def _read(parts: list[Excerpt], dimensions: Dimensions | None, micro_batch: int | None) -> dict[str, Any]:
    """The diagnosis, made in a process with limits."""
    given = {
        "excerpts": [vars(part) for part in parts],
        "dimensions": dimensions and vars(dimensions),
        "micro_batch": micro_batch,
    }
    try:
        found: dict[str, Any] = programs.run_for_json(programs.DIAGNOSIS, [], text=json.dumps(given))
    except programs.ProgramError as error:
        fix = "Send the end of the log, with the error."
        raise ConfigError([Problem("log", None, f"cannot be read: {error}.", fix)]) from None
    return found


def _dimensions(model: str | None) -> Dimensions | None:
    """The dimensions of a model; None without one."""
    if not model:
        return None
    return read_dimensions(str(find_model(model, callers.current().allowed) or model))
