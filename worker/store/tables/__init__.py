"""The tables. A run's row is authoritative; the other tables contain what it reported.

Times are seconds since the epoch (float), by the database's clock if anything depends on them. Sizes are bytes.
"""

from worker.choices import ChannelKind, Event, Request, ServedState, Status, WebhookFormat
from worker.store.tables.installation import (
    Account,
    Cordon,
    Dataset,
    DeviceLease,
    EngineReport,
    IdempotencyKey,
    Machine,
    MachineFailure,
    QueueState,
    Share,
)
from worker.store.tables.notifications import Notification, NotificationChannel, Preferences
from worker.store.tables.queued import Build, Evaluation
from worker.store.tables.reported import LogLine, Metric, MetricRollup, RunEvent, Sample
from worker.store.tables.runs import LOCAL, Attempt, Run, RunNode, Sweep
from worker.store.tables.serving import PromptSet, ServedModel

__all__ = [
    "LOCAL",
    "Account",
    "Attempt",
    "Build",
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
    "Sample",
    "ServedModel",
    "ServedState",
    "Share",
    "Status",
    "Sweep",
    "WebhookFormat",
]
