"""A Celery worker for benchmarks.chaos with its own device, so that several workers can run on one CPU at once.

`LATHE_CHAOS_DEVICE=slot1 celery -A benchmarks.chaos.worker_process worker ...`
"""

import os

from benchmarks.chaos import job, supervisor
from worker.engines.local import starting
from worker.engines.slurm import jobs
from worker.machine import devices, free_devices
from worker.machine.process_identity import hostname
from worker.queue.tasks import app

__all__ = ["app"]


def own_devices() -> list[str]:
    """The one device of this worker."""
    return [f"{hostname()}/{os.environ[supervisor.DEVICE]}/{devices.CPU}"]


devices.own_devices = own_devices
free_devices.own_devices = own_devices  # type: ignore[attr-defined] # it has imported the other one by name
starting.supervisor_command = supervisor.command  # type: ignore[assignment]
jobs.supervisor_program = job.PROGRAM
