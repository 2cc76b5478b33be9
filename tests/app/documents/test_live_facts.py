"""The facts at the top of a run's page."""

import time

import pytest

from app.documents.live.reader import facts
from worker.store.tables import Run, Status


@pytest.mark.parametrize("status", list(Status))
def test_only_a_running_run_has_an_expected_end(status: Status) -> None:
    run = Run(config={}, owner="", status=status, step=5, total_steps=20, seconds_per_step=60.0)
    until, now = facts(run, queue=None, speed=None)["until"], time.time()
    assert (until is not None) == (status is Status.RUNNING)
    assert until is None or until == pytest.approx(now + 15 * 60, abs=60)
