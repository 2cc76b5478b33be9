"""The worker: a Celery task that answers the doorbell, and the reaper beside it.

`celery -A worker.tasks worker ...`, as `worker_command` says, is a worker.
"""

import logging
import sys

from celery import shared_task
from celery.signals import celeryd_after_setup, worker_shutting_down

from worker import operators
from worker.queue import START_RUN, current_app
from worker.reaper import Reaper
from worker.starting import start_waiting

log = logging.getLogger(__name__)

app = current_app()
_reaper = Reaper()


def worker_command() -> list[str]:
    """The command of a worker, to be run in `settings.ROOT`, where the package is."""
    options = ["--pool", "threads", "--concurrency", "2", "--without-gossip", "--without-mingle", "--loglevel", "INFO"]
    return [sys.executable, "-m", "celery", "-A", "worker.tasks", "worker", *options]


@shared_task(name=START_RUN, ignore_result=True)  # type: ignore[untyped-decorator]
def start_run(run_id: str) -> None:
    """Answers the doorbell. It was rung for `run_id`; runs that have waited longer come first."""
    started = start_waiting()
    log.info("rung for run %s: %s", run_id, ", ".join(f"started {run.id}" for run in started) or "nothing to start")


# Not at worker_ready: that waits for the broker, which may be away while runs are lost and wait.
@celeryd_after_setup.connect  # type: ignore[untyped-decorator]
def _begin_rounds(**_: object) -> None:
    operators.compile_in_background()  # before there are other threads
    _reaper.start()


@worker_shutting_down.connect  # type: ignore[untyped-decorator]
def _end_rounds(**_: object) -> None:
    _reaper.stop()
