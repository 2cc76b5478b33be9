"""The causes of failure that Lathe tells apart. One more is an entry in its subject's table and a log in tests/logs."""

from worker import (
    causes_devices,
    causes_distributed,
    causes_files,
    causes_install,
    causes_memory,
    causes_model,
    causes_numbers,
)
from worker.cause import Cause

BY_SUBJECT: dict[str, tuple[Cause, ...]] = {
    "Memory": causes_memory.CAUSES,
    "Numbers": causes_numbers.CAUSES,
    "Several processes": causes_distributed.CAUSES,
    "Files and the hub": causes_files.CAUSES,
    "Model and data": causes_model.CAUSES,
    "GPUs and drivers": causes_devices.CAUSES,
    "Installation and processes": causes_install.CAUSES,
}
CAUSES = tuple(cause for group in BY_SUBJECT.values() for cause in group)
