"""What users choose from and rows contain: the states of runs, events, formats, places in the queue. No library."""

from enum import StrEnum


class Status(StrEnum):
    """The life of a run.

    queued -> running -> finished | failed | stopped | diverged
    A running run returns to queued when its machine stops or its supervisor is lost; it resumes from its last
    checkpoint, or after its training if its result is saved. Resume returns a failed, stopped or diverged run to queued, and a
    finished one of which a stage after the training was not done. The result of a diverged run is its best checkpoint
    with finite weights, if it has one.
    """

    QUEUED = "queued"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"
    DIVERGED = "diverged"

    @property
    def ended(self) -> bool:
        return self not in (Status.QUEUED, Status.RUNNING)

    @property
    def resumable(self) -> bool:
        """True if Resume continues the run from its last checkpoint."""
        return self in (Status.FAILED, Status.STOPPED, Status.DIVERGED)


class Request(StrEnum):
    """A request to a running run by a user or the machine; its supervisor carries it out."""

    STOP = "stop"
    REQUEUE = "requeue"


class Priority(StrEnum):
    """The part of the queue in which a run waits."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


class SearchMethod(StrEnum):
    """How configurations are chosen, and which of them train to the end."""

    GRID = "grid"
    RANDOM = "random"
    HALVING = "halving"


class Event(StrEnum):
    """Something about a run that users can be told. `TEST` is what `lathe notify test` sends."""

    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"
    DIVERGED = "diverged"
    TEST = "test"

    @property
    def offered(self) -> bool:
        """True if a channel can be told of it."""
        return self is not Event.TEST


USUAL_EVENTS = (Event.FINISHED, Event.FAILED, Event.DIVERGED)
"""Those that a channel is told of unless its owner chooses others."""


class ChannelKind(StrEnum):
    """How a channel tells its owner."""

    WEBHOOK = "webhook"
    EMAIL = "email"
    BROWSER = "browser"


class WebhookFormat(StrEnum):
    """The body of a webhook's request."""

    JSON = "json"
    SLACK = "slack"
    DISCORD = "discord"
    NTFY = "ntfy"


class ServedState(StrEnum):
    """waiting -> starting -> ready -> ended; it may end from each of them."""

    WAITING = "waiting"
    STARTING = "starting"
    READY = "ready"
    ENDED = "ended"


class Freeable(StrEnum):
    """A kind of files that can be freed."""

    FINISHED_CHECKPOINTS = "finished_checkpoints"
    TOKENS = "tokens"
    UPLOADS = "uploads"
    BUILDS = "builds"
    RESUMABLE_CHECKPOINTS = "resumable_checkpoints"
    UNKNOWN_RUNS = "unknown_runs"

    @property
    def harmless(self) -> bool:
        """True if nothing is lost that anybody could need."""
        return self not in (Freeable.RESUMABLE_CHECKPOINTS, Freeable.UNKNOWN_RUNS)

    @property
    def of_runs(self) -> bool:
        """True if the files belong to runs, whose owners may free them."""
        return self in (Freeable.FINISHED_CHECKPOINTS, Freeable.RESUMABLE_CHECKPOINTS, Freeable.BUILDS)
