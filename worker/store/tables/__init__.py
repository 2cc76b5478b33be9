"""The tables. A run's row is authoritative; the other tables contain what it reported.

Times are seconds since the epoch (float), by the database's clock if anything depends on them. Sizes are bytes.
"""

from worker.store.tables.evaluations import Evaluation
from worker.store.tables.installation import (
    Account,
    Dataset,
    DeviceLease,
    EngineReport,
    IdempotencyKey,
    Machine,
    QueueState,
    Share,
)
from worker.store.tables.nodes import Cordon, MachineFailure, RunNode
from worker.store.tables.notifications import (
    ChannelKind,
    Event,
    Notification,
    NotificationChannel,
    Preferences,
    WebhookFormat,
)
from worker.store.tables.reported import LogLine, Metric, MetricRollup, RunEvent
from worker.store.tables.run_values import damaged
from worker.store.tables.runs import LOCAL, Attempt, Request, Run, Status
from worker.store.tables.serving import PromptSet, ServedModel, ServedState
from worker.store.tables.sweeps import Sweep

__all__ = [
    "LOCAL",
    "Account",
    "Attempt",
    "ChannelKind",
    "Cordon",
    "Dataset",
    "DeviceLease",
    "EngineReport",
    "Evaluation",
    "Event",
    "IdempotencyKey",
    "LogLine",
    "Machine",
    "MachineFailure",
    "Metric",
    "MetricRollup",
    "Notification",
    "NotificationChannel",
    "Preferences",
    "PromptSet",
    "QueueState",
    "Request",
    "Run",
    "RunEvent",
    "RunNode",
    "ServedModel",
    "ServedState",
    "Share",
    "Status",
    "Sweep",
    "WebhookFormat",
    "damaged",
]
