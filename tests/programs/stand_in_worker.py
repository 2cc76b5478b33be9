"""A Celery worker whose runs train with the stand-in: `celery -A programs.stand_in_worker worker ...` in tests/."""

from supervised import command

from worker.engines.local import starting
from worker.queue.tasks import app

__all__ = ["app"]

starting.supervisor_command = command
