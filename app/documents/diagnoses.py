"""Diagnoses of failed runs and of shared logs, for REST and the page Diagnose."""

from collections.abc import Mapping
from itertools import islice
from typing import Any

from app.documents import Document
from app.texts import _
from training.run_folder.memory_words import MEMORY_LIMIT
from worker.diagnosis import shared_diagnoses
from worker.diagnosis.shared_diagnoses import SharedDiagnosis
from worker.store import database, run_list, sight
from worker.store.tables import Run, Status

MOST = 10


class DiagnosisAnswer(Document):
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


class SharedIn(Document):
    """Where a diagnosis was shared: its id, and the path of its page on this server."""

    id: str
    address: str


class LogDiagnosis(DiagnosisAnswer):
    """The diagnosis of a log; `shared`, if it was asked for, tells where it is."""

    shared: SharedIn | None = None


class Compared(Document):
    """The failed run beside the finished one most like it: settings that differ as [its, the other's], and new log lines."""

    run: str
    name: str
    shared: list[str]
    settings: dict[str, list[Any]]
    lines: list[Any]


class RunDiagnosis(DiagnosisAnswer):
    """The diagnosis of a run, and the run beside a finished one (null if there is none like it)."""

    compared: Compared | None


class SharedDiagnosisAnswer(Document):
    """A shared diagnosis with its log, both without secrets."""

    id: str
    owner: str
    created_at: float
    diagnosis: DiagnosisAnswer
    log: str
    address: str


class Recent(Document):
    """A diagnosis of a failed run or of a shared log: its address, name and cause; `when` in epoch seconds."""

    address: str
    name: str
    title: str
    cause: str
    when: float


class RecentDiagnoses(Document):
    """The last ten diagnoses of failed runs and shared logs, newest first."""

    diagnoses: list[Recent]


def address(diagnosis_id: str) -> str:
    """The address of a shared diagnosis on this server."""
    return f"/diagnose?id={diagnosis_id}"


def recent() -> list[Recent]:
    """The last ten diagnoses, the newest first."""
    with database.read() as session:
        query = run_list.Query(Status.FAILED, order_by="finished_at", limit=2 * MOST)
        failed = run_list.listing(session=session, query=query)
        diagnosed = [recent for run in failed if (recent := _of_run(run)) is not None]
    listed = (one for one in shared_diagnoses.listing() if sight.user() in (None, one.owner))
    shared = [
        _recent(address(one.id), _("Log of {name}").format(name=one.owner), vars(one), one.created_at)
        for one in islice(listed, MOST)
    ]
    return sorted([*diagnosed, *shared], key=lambda one: one.when, reverse=True)[:MOST]


def document(shared: SharedDiagnosis) -> SharedDiagnosisAnswer:
    """A shared diagnosis with its log and the address of its page."""
    return SharedDiagnosisAnswer(**vars(shared), address=address(shared.id))


def _of_run(run: Run) -> Recent | None:
    diagnosis = (run.error or {}).get("diagnosis")
    if not diagnosis or run.finished_at is None:
        return None
    limited = str(run.error.get("message")).startswith(MEMORY_LIMIT) if run.error else False
    title = MEMORY_LIMIT if limited else diagnosis["title"]
    return _recent(f"/run?id={run.id}", run.name, {**diagnosis, "title": title}, run.finished_at)


def _recent(address: str, name: str, diagnosis: Mapping[str, Any], when: float) -> Recent:
    return Recent(
        address=address, name=name, title=diagnosis["title"].removesuffix("."), cause=diagnosis["cause"], when=when
    )
