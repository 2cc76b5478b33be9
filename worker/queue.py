"""The queue: a message is a doorbell that says "look at the waiting runs". The rows are the truth.

A message holds a run's id and nothing else and is acknowledged before any work. Losing one or getting it twice changes
nothing: a run is claimed in the database, once, and the worker's reaper looks every few seconds anyway.
"""

import logging
from functools import cache
from typing import Any

from celery import Celery
from kombu.exceptions import OperationalError
from redis import RedisError

from worker.settings import get_settings

log = logging.getLogger(__name__)

NAME = "lathe"
START_RUN = "lathe.start_run"
RING_SECONDS = 1.0  # a person waits for this
WORKER_SECONDS = 20.0


def current_app() -> Celery:
    """The workers' Celery application, on the broker of the settings. Nothing connects yet."""
    return _app(get_settings().celery_broker_url, WORKER_SECONDS)


def ring(run_id: str) -> bool:
    """Asks any worker to look at the waiting runs, `run_id` among them. Never raises for a broker that is away.

    Returns:
        False where the broker could not be reached (within about a second); the run waits all the same.
    """
    try:
        _app(get_settings().celery_broker_url, RING_SECONDS).send_task(START_RUN, args=[run_id], retry=False)
    except (OperationalError, RedisError) as error:
        log.warning("the queue cannot be reached (%s); run %s waits until a worker looks by itself", error, run_id)
        return False
    return True


@cache
def _app(broker_url: str, timeout: float) -> Celery:
    made = Celery(NAME, broker=broker_url, include=["worker.tasks"])
    made.conf.update(
        task_default_queue=NAME,
        task_serializer="json",
        accept_content=["json"],
        task_ignore_result=True,
        task_acks_late=False,
        task_publish_retry=False,
        worker_prefetch_multiplier=1,
        worker_send_task_events=False,
        # Losing the broker must not end what runs: runs are under their own supervisors.
        worker_cancel_long_running_tasks_on_connection_loss=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_connection_timeout=timeout,
        broker_transport_options=_transport_options(broker_url, timeout),
    )
    return made


def _transport_options(broker_url: str, timeout: float) -> dict[str, Any]:
    if not broker_url.startswith(("redis", "valkey")):
        return {}
    retries = 0 if timeout == RING_SECONDS else None
    return {"socket_connect_timeout": timeout, "socket_timeout": timeout, "max_retries": retries}
