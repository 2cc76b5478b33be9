"""`lathe worker --drain`: a worker for containers, in which the end of the first process kills all others.

On a signal to stop, each run saves a checkpoint and is requeued before the container ends.
"""

import signal
import subprocess
import threading
from types import FrameType

import click

from app.local import leaving
from worker.queue.tasks import worker_command
from worker.settings import ROOT

POLL_SECONDS = 0.5


def serve() -> int:
    """Runs a worker until a signal or its own end, then requeues its runs; a second signal ends the wait for them.

    Returns the exit code: 0 after a signal.
    """
    stopping, forced = threading.Event(), threading.Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        (forced if stopping.is_set() else stopping).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    child = subprocess.Popen(worker_command(), cwd=ROOT)
    while child.poll() is None and not stopping.wait(POLL_SECONDS):
        pass
    # The worker ends first: otherwise it would claim the requeued runs.
    child.terminate()
    code = child.wait()
    leaving.requeue_running_runs(lambda line: click.echo(line, err=True), forced)
    return 0 if stopping.is_set() else code
