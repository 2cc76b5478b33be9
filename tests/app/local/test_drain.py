"""A worker in a container saves and requeues its runs before it ends."""

import os
import signal

import pytest
from paths import ROOT, TESTS
from patience import eventually
from supervised import ENDLESS, get, living, nursery, queue_run

from worker.store.tables import Status

pytestmark = pytest.mark.slow


def test_a_stopping_worker_saves_and_requeues_its_run_before_it_ends(home):
    run_id = queue_run(**ENDLESS)
    log = home / "worker.log"
    path = os.pathsep.join([str(ROOT), str(TESTS)])
    worker = nursery().fork("drain", [], log, env=os.environ | {"PYTHONPATH": path})
    try:
        eventually(lambda: get(run_id).step > 2)
        worker.process.send_signal(signal.SIGTERM)
        worker.wait()
    finally:
        worker.end()
    run = get(run_id)
    assert (run.status, run.attempt) == (Status.QUEUED, 1)
    assert living(run_id) == []
    assert f"{run_id}  saved and requeued at step {run.step}" in log.read_text()
    assert log.read_text().endswith("exit code 0\n")
