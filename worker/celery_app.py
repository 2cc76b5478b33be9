"""The Celery application. A message only tells a worker to check the queued runs, which are stored in the database.

A message contains a run's id and nothing else and is acknowledged before any work. A lost or repeated message changes nothing: a
run is claimed once in the database, and the worker's reaper checks every few seconds anyway.
"""

import logging
from functools import cache
from typing import TYPE_CHECKING, Any

from worker.settings import get_settings

if TYPE_CHECKING:  # Celery takes 0.2 s to import: only where a message is sent or received
    from celery import Celery

log = logging.getLogger(__name__)

NAME = "lathe"
START_RUN = "lathe.start_run"
SERVE_MODEL = "lathe.serve_model"
NOTIFY_SECONDS = 1.0  # the user waits for this
WORKER_SECONDS = 20.0


def current_app() -> "Celery":
    """The workers' Celery application, on the broker of the settings. Nothing connects yet."""
    return _app(get_settings().celery_broker_url, WORKER_SECONDS)


def quick_app() -> "Celery":
    """The application for requests of users: it gives up after a second if the broker is unreachable."""
    return _app(get_settings().celery_broker_url, NOTIFY_SECONDS)


def notify(run_id: str) -> bool:
    """Tells a worker to check the queued runs, `run_id` among them. Does not raise if the broker is unreachable.

    Returns:
        False if the broker is unreachable (after about a second); the run is queued anyway.
    """
    if _sent(START_RUN, run_id):
        return True
    log.warning("run %s waits until a worker checks the queue by itself", run_id)
    return False


def notify_of_model(served_id: str) -> bool:
    """Tells a worker to start served models that wait, as `notify` does for runs."""
    return _sent(SERVE_MODEL, served_id)


def _sent(task: str, identifier: str) -> bool:
    from kombu.exceptions import OperationalError
    from redis import RedisError

    try:
        quick_app().send_task(task, args=[identifier], retry=False)
    except (OperationalError, RedisError) as error:
        log.warning("the broker is unreachable (%s)", error)
        return False
    return True


@cache
def _app(broker_url: str, timeout: float) -> "Celery":
    # The package `celery` replaces itself while it is imported, so that `from celery import` fails in one of two threads.
    from celery.app.base import Celery

    application = Celery(NAME, broker=broker_url, include=["worker.queue.tasks"])
    application.conf.update(
        task_default_queue=NAME,
        task_serializer="json",
        accept_content=["json"],
        task_ignore_result=True,
        task_acks_late=False,
        task_publish_retry=False,
        worker_prefetch_multiplier=1,
        worker_send_task_events=False,
        # Losing the broker must not end running tasks: runs have their own supervisors.
        worker_cancel_long_running_tasks_on_connection_loss=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_connection_timeout=timeout,
        broker_transport_options=_transport_options(broker_url, timeout),
    )
    return application


def _transport_options(broker_url: str, timeout: float) -> dict[str, Any]:
    if not broker_url.startswith(("redis", "valkey")):
        return {}
    retries = 0 if timeout == NOTIFY_SECONDS else None
    return {"socket_connect_timeout": timeout, "socket_timeout": timeout, "max_retries": retries}
