"""The tables. A run's row is authoritative; the other tables contain what it reported.

Times are seconds since the epoch (float), by the database's clock if anything depends on them. Sizes are bytes.
"""

from worker.store.tables.evaluations import Evaluation
from worker.store.tables.installation import Account, Dataset, DeviceLease, IdempotencyKey, Machine, QueueState
from worker.store.tables.reported import LogLine, Metric, MetricRollup, RunEvent
from worker.store.tables.runs import LOCAL, Attempt, Request, Run, Status

__all__ = [
    "LOCAL",
    "Account",
    "Attempt",
    "Dataset",
    "DeviceLease",
    "Evaluation",
    "IdempotencyKey",
    "LogLine",
    "Machine",
    "Metric",
    "MetricRollup",
    "QueueState",
    "Request",
    "Run",
    "RunEvent",
    "Status",
]
