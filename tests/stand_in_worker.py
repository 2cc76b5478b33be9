"""A Celery worker whose runs train with the stand-in: `celery -A stand_in_worker worker ...` in this folder."""

from supervised import command

from worker import starting
from worker.tasks import app

__all__ = ["app"]

starting.supervisor_command = command
