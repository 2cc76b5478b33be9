"""A worker in a container gives its runs back before it ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from supervised import eventually, get, living, queue_run

from worker.models import Status
from worker.settings import ROOT

TESTS = Path(__file__).parent
PROGRAM = """
import sys
from app import cli_drain
arguments = cli_drain.worker_command()
cli_drain.worker_command = lambda: ["stand_in_worker" if word == "worker.tasks" else word for word in arguments]
sys.exit(cli_drain.serve())
"""


def test_a_draining_worker_that_is_told_to_stop_saves_its_run_and_queues_it_again_before_it_ends(home):
    run_id = queue_run(steps=4000, pause=0.05, save_at=2)
    path = os.pathsep.join([str(ROOT), str(TESTS)])
    worker = subprocess.Popen([sys.executable, "-c", PROGRAM], env=os.environ | {"PYTHONPATH": path}, stderr=subprocess.PIPE)
    try:
        eventually(lambda: get(run_id).step > 2, 60)
        worker.send_signal(signal.SIGTERM)
        _, told = worker.communicate(timeout=60)
    finally:
        worker.kill()
        worker.wait()
    run = get(run_id)
    assert (worker.returncode, run.status, run.attempt) == (0, Status.QUEUED, 1)
    assert living(run_id) == []
    assert f"{run_id}  saved and queued again at step {run.step}" in told.decode()
