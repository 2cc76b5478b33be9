"""The causes of failure that Lathe recognizes. To add one, add an entry to its subject's table and a log to tests/logs."""

from worker.diagnosis.cause import Cause
from worker.diagnosis.causes import devices, distributed, files, install, memory, model, numerics

BY_SUBJECT: dict[str, tuple[Cause, ...]] = {
    "Memory": memory.CAUSES,
    "Numbers": numerics.CAUSES,
    "Several processes": distributed.CAUSES,
    "Files and the hub": files.CAUSES,
    "Model and data": model.CAUSES,
    "GPUs and drivers": devices.CAUSES,
    "Installation and processes": install.CAUSES,
}
CAUSES = tuple(cause for group in BY_SUBJECT.values() for cause in group)
