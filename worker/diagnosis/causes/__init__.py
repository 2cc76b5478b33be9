"""The causes of failure that Lathe recognizes. To add one, add an entry to its subject's table and a log to tests/logs."""

from worker.diagnosis.cause import Cause
from worker.diagnosis.causes import (
    checkpoints,
    compilation,
    data,
    devices,
    distributed,
    ended,
    files,
    hub,
    install,
    memory,
    model,
    numerics,
    settings,
    sharding,
    tokens,
)

BY_SUBJECT: dict[str, tuple[Cause, ...]] = {
    "Memory": memory.CAUSES,
    "Numbers": numerics.CAUSES,
    "Data and tokenizers": (*data.CAUSES, *tokens.CAUSES),
    "Models, adapters and checkpoints": (*model.CAUSES, *checkpoints.CAUSES),
    "Settings": settings.CAUSES,
    "Several processes": distributed.CAUSES,
    "Sharded and copied weights": sharding.CAUSES,
    "Files": files.CAUSES,
    "The hub and other services": hub.CAUSES,
    "GPUs and drivers": devices.CAUSES,
    "Installation": (*compilation.CAUSES, *install.CAUSES),
    "Processes": ended.CAUSES,
}
CAUSES = tuple(cause for group in BY_SUBJECT.values() for cause in group)
