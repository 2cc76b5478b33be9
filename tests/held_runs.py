"""Changes of runs for tests, each in its own transaction."""

from sqlmodel import col, select

from worker.store import claims, history, runs
from worker.store import database as db
from worker.store.tables import Attempt, DeviceLease, Status
from worker.store.work import RUN

OWNER = "node1:100:5.0"
GPU = "node1/cuda:0"


def claim(run_id, owner=OWNER, devices=(GPU,), lease_seconds=60.0):
    with db.write() as session:
        return claims.claim(
            session=session, run_id=run_id, owner=owner, devices=list(devices), lease_seconds=lease_seconds
        )


def finish(run, status=Status.FINISHED, **values):
    with db.write() as session:
        return claims.finish(session=session, run_id=run.id, attempt=run.attempt, status=status, **values)


def requeue(run, **values):
    with db.write() as session:
        return claims.requeue(session=session, run_id=run.id, attempt=run.attempt, **{"reason": "it was lost"} | values)


def renew(run, owner=OWNER, lease_seconds=60.0):
    with db.write() as session:
        return RUN.renew(session, RUN.key_of(run), holder=owner, lease_seconds=lease_seconds).request


def request_stop(run):
    with db.write() as session:
        return runs.request_stop(session=session, run_id=run.id)


def resume(run):
    with db.write() as session:
        return runs.resume(session=session, run_id=run.id)


def now_of(run):
    with db.read() as session:
        return runs.get(session=session, run_id=run.id)


def leased():
    with db.read() as session:
        return sorted(session.exec(select(DeviceLease.device)))


def attempts_of(run):
    with db.read() as session:
        return list(session.exec(select(Attempt).where(Attempt.run_id == run.id).order_by(col(Attempt.number))))


def told_of(run):
    with db.read() as session:
        return [(event.kind, event.level, event.message) for event in history.events(session=session, run_id=run.id)]
