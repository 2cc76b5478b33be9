"""A worker in a container saves and requeues its runs before it ends."""

import os
import signal
import subprocess
import sys

import pytest
from paths import TESTS
from supervised import eventually, get, living, queue_run

from worker.settings import ROOT
from worker.store.tables import Status

pytestmark = pytest.mark.slow

PROGRAM = """
import sys
from app.cli import drain
arguments = drain.worker_command()
drain.worker_command = lambda: ["programs.stand_in_worker" if word == "worker.queue.tasks" else word for word in arguments]
sys.exit(drain.serve())
"""


def test_a_stopping_worker_saves_and_requeues_its_run_before_it_ends(home):
    run_id = queue_run(steps=4000, pause=0.05, save_at=2)
    path = os.pathsep.join([str(ROOT), str(TESTS)])
    worker = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], env=os.environ | {"PYTHONPATH": path}, stderr=subprocess.PIPE
    )
    try:
        eventually(lambda: get(run_id).step > 2, 60)
        worker.send_signal(signal.SIGTERM)
        _, output = worker.communicate(timeout=60)
    finally:
        worker.kill()
        worker.wait()
    run = get(run_id)
    assert (worker.returncode, run.status, run.attempt) == (0, Status.QUEUED, 1)
    assert living(run_id) == []
    assert f"{run_id}  saved and requeued at step {run.step}" in output.decode()
