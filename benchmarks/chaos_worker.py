"""A real Celery worker for benchmarks.chaos, with a device of its own, so that runs of several workers overlap on one CPU.

`LATHE_CHAOS_DEVICE=slot1 celery -A benchmarks.chaos_worker worker ...`
"""

import os

from benchmarks import chaos_supervisor
from worker import devices, operators, starting
from worker.identity import hostname
from worker.tasks import app

__all__ = ["app"]

devices.own_devices = lambda: [f"{hostname()}/{os.environ[chaos_supervisor.DEVICE]}/{devices.CPU}"]
starting.supervisor_command = chaos_supervisor.command
operators.compile_in_background = lambda: None  # these workers do not live long enough to compile anything
