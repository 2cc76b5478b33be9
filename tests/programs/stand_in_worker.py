"""A Celery worker whose runs train with the stand-in: `celery -A programs.stand_in_worker worker ...` in tests/."""

from programs.stand_in_nursery import Nursery

from worker.engines.local import starting
from worker.machine import processes
from worker.queue import reaper
from worker.queue.tasks import app

__all__ = ["app"]

nursery = Nursery.forked()
processes.start_detached = nursery.start_detached
starting._standby.prepare = lambda command: None
reaper.ROUND_SECONDS = 0.5
