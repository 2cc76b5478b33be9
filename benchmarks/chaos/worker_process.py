"""A Celery worker for benchmarks.chaos with its own device, so that several workers can run on one CPU at once.

`LATHE_CHAOS_DEVICE=slot1 celery -A benchmarks.chaos.worker_process worker ...`
"""

import os

from benchmarks.chaos import job, supervisor
from worker.engines.local import starting
from worker.engines.slurm import jobs
from worker.machine import devices
from worker.machine.process_identity import hostname
from worker.queue.tasks import app

__all__ = ["app"]

devices.own_devices = lambda: [f"{hostname()}/{os.environ[supervisor.DEVICE]}/{devices.CPU}"]
starting.supervisor_command = supervisor.command  # type: ignore[assignment]
jobs.supervisor_program = job.PROGRAM
