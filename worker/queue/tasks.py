"""The worker: a Celery task that starts waiting runs, the reaper thread, and the thread that sends notifications.

Start it with `worker_command`: `celery -A worker.queue.tasks worker ...`.
"""

import logging
import sys

from celery import shared_task
from celery.signals import (
    after_setup_logger,
    after_setup_task_logger,
    celeryd_after_setup,
    worker_shutdown,
    worker_shutting_down,
)

from training.redaction import Formatter
from worker.celery_app import SERVE_MODEL, START_RUN, current_app
from worker.notifications.delivery import Deliverer
from worker.queue import parts
from worker.queue.reaper import Reaper, submit_waiting
from worker.settings import name_unknown_variables

log = logging.getLogger(__name__)

LAST_REPORT_SECONDS = 5.0

app = current_app()
_reaper = Reaper()
_deliverer = Deliverer()


def worker_command() -> list[str]:
    """The command that starts a worker; run it in `settings.ROOT`."""
    options = ["--pool", "threads", "--concurrency", "2", "--without-gossip", "--without-mingle", "--loglevel", "INFO"]
    return [sys.executable, "-m", "celery", "-A", "worker.queue.tasks", "worker", *options]


@shared_task(name=START_RUN, ignore_result=True)  # type: ignore[untyped-decorator]
def start_run(run_id: str) -> None:
    """Starts waiting evaluations, builds and runs, or wakes the engine that does, if that asks elsewhere. The message names
    `run_id`; runs that have waited longer start first."""
    for part in parts.BEFORE_RUNS:
        part.start_waiting()
    _reaper.wake()
    started = submit_waiting()
    log.info(
        "message for run %s: %s", run_id, ", ".join(f"started {run.id}" for run in started) or "nothing to start here"
    )


@shared_task(name=SERVE_MODEL, ignore_result=True)  # type: ignore[untyped-decorator]
def serve_model(served_id: str) -> None:
    """Starts served models that wait. The message names `served_id`; those that have waited longer start first."""
    log.info("message for served model %s", served_id)
    for part in parts.SERVED:
        part.start_waiting()


@after_setup_logger.connect  # type: ignore[untyped-decorator]
@after_setup_task_logger.connect  # type: ignore[untyped-decorator]
def _log_printable_text(logger: logging.Logger, **_: object) -> None:
    for handler in logger.handlers:
        handler.setFormatter(Formatter())


# Not at worker_ready: that waits for the broker, and runs must be recovered even if it is unreachable.
@celeryd_after_setup.connect  # type: ignore[untyped-decorator]
def _begin_rounds(**_: object) -> None:
    name_unknown_variables()
    _reaper.start()
    _deliverer.start()


@worker_shutting_down.connect  # type: ignore[untyped-decorator]
def _end_rounds(**_: object) -> None:
    for part in parts.SERVED:
        part.stop()
    _reaper.stop()
    _deliverer.stop()


@worker_shutdown.connect  # type: ignore[untyped-decorator]
def _last_report(**_: object) -> None:
    for part in parts.SERVED:
        part.wait_for_ends()
    if _reaper.is_alive():
        _reaper.join(LAST_REPORT_SECONDS)
