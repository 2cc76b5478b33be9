"""Why a process gives its lease up."""

import threading

import pytest

from worker.store.work import SERVED
from worker.supervision import lease
from worker.supervision.lease import Lease


@pytest.fixture
def ahead(home, monkeypatch):
    """By how many seconds the steady clock is ahead."""
    ahead, steady = [0.0], lease.steady
    monkeypatch.setattr(lease, "steady", lambda: steady() + ahead[0])
    return ahead


def reason(ahead, seconds):
    """What the guard says of a lease that nobody renews, if the process stands still for some seconds."""
    reasons, told = [], threading.Event()
    held = Lease(SERVED, ("one",))

    def wait(timeout):
        ahead[0] += timeout + seconds
        return held._over.is_set()

    held._over.wait = wait
    with held.guarded(lambda why: (reasons.append(why), told.set())):
        told.wait()
    assert reasons == [held.gave_up]
    return held.gave_up


def test_a_supervisor_that_stood_still_is_not_said_to_have_lost_the_database(ahead):
    assert "Its supervisor stood still, 6" in reason(ahead, seconds=60.0)


def test_a_lease_that_nobody_renews_ends_since_the_database_was_unreachable(ahead):
    assert reason(ahead, seconds=0.0).startswith("The database was unreachable")


def test_nothing_is_killed_once_the_guarded_work_has_ended(ahead):
    killed = []
    held = Lease(SERVED, ("one",))
    with held.guarded(killed.append):
        (guard,) = (thread for thread in threading.enumerate() if thread.name == "lease guard")
    guard.join()
    assert (killed, held.gave_up) == ([], "")
