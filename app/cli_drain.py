"""`lathe worker --drain`: a worker for containers, where the end of the first process is the end of all the others.

Elsewhere a worker may be restarted while its runs train on. Here they would be killed with it, so when it is told to stop,
each saves a checkpoint and goes back to the queue first.
"""

import signal
import subprocess
import threading
from types import FrameType

import click

from app import leaving
from worker.settings import ROOT
from worker.tasks import worker_command

LOOK_SECONDS = 0.5


def serve() -> int:
    """Runs a worker until a signal or its own end, then gives its runs back; a second signal does not wait for them.

    Returns the exit code: 0 where it was told to stop.
    """
    told, forced = threading.Event(), threading.Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        (forced if told.is_set() else told).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    child = subprocess.Popen(worker_command(), cwd=ROOT)
    while child.poll() is None and not told.wait(LOOK_SECONDS):
        pass
    # The worker ends first: it would take back what is given up.
    child.terminate()
    code = child.wait()
    leaving.give_back(lambda line: click.echo(line, err=True), forced)
    return 0 if told.is_set() else code
