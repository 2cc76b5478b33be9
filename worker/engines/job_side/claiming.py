"""How a job takes the run that it was submitted for."""

import logging
import os
import time

from sqlalchemy import make_url

from training.errors import UserError
from worker.machine.devices import JOB
from worker.machine.process_identity import boot, hostname, me
from worker.settings import get_settings
from worker.store import claims, database, runs
from worker.store.database import UNREACHABLE
from worker.store.runs import RunNotFound
from worker.store.tables import Run, Status

log = logging.getLogger(__name__)

_RETRY_SECONDS = 2.0
_MOST_LEASES = 4  # the run of a lost node is requeued after one lease


def check_database(submitted_on: str) -> None:
    """Refuses a SQLite database on another machine than the one that submitted the job.

    SQLite's write-ahead log needs shared memory, which no shared folder has: the database would be damaged.

    Raises:
        UserError: the database is SQLite, and this is another machine.
    """
    url = make_url(get_settings().sqlalchemy_url)
    if url.get_backend_name() == "sqlite" and submitted_on != boot():
        raise UserError(
            "LATHE_DATABASE_URL",
            str(url),
            f"is SQLite, which several machines cannot share; this job runs on {hostname()}.",
            "Set it to a PostgreSQL URL that every node reaches.",
        )


def claim(run_id: str, job_id: str, nodes: list[str]) -> Run | None:
    """Claims the run for this job; None if it is not for this job: it has ended, is held, or has another job.

    After a restart of the job (a node was lost, or a preemption) the run may still be held by what was lost; waits for it.
    """
    seconds = get_settings().lease_seconds
    deadline = time.monotonic() + max(_MOST_LEASES * seconds, 600)
    while time.monotonic() < deadline:
        try:
            run = _try(run_id, job_id, nodes, seconds)
        except UNREACHABLE as error:
            log.warning("the database is unreachable: %s", error)
        except RunNotFound:
            return None
        else:
            if run.holder == str(me()):
                return run
            if run.status is not Status.RUNNING or run.job_id != job_id:
                log.info("run %s is %s, with job %s: nothing to do for job %s", run_id, run.status, run.job_id, job_id)
                return None
        time.sleep(_RETRY_SECONDS)
    return None


def _try(run_id: str, job_id: str, nodes: list[str], seconds: float) -> Run:
    """The run after one try to claim it; it is ours if we hold its lease."""
    devices = [f"{node}{JOB}{job_id}" for node in nodes]
    with database.write() as session:
        claimed = claims.claim(
            session=session, run_id=run_id, owner=str(me()), devices=devices, lease_seconds=seconds, job_id=job_id
        )
        return claimed or runs.get(session=session, run_id=run_id)


def job_nodes() -> list[str]:
    """The nodes of this job, the first one first."""
    from worker.engines.slurm.commands import SlurmError, call

    listed = os.environ.get("SLURM_JOB_NODELIST", "")
    try:
        return call(["scontrol", "show", "hostnames", listed]).split()
    except SlurmError:  # works without the controller; names are for display only
        return [hostname()]
