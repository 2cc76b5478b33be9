"""Who is told about which runs, what has to be sent, and what users prefer."""

from typing import Annotated, Any

from sqlalchemy import Column, Index, Text, UniqueConstraint
from sqlmodel import Field

from worker.choices import ChannelKind, Event, WebhookFormat
from worker.store.tables.columns import ROW_ID, as_text, flag, json_list, json_or_null, json_value, text
from worker.store.tables.row import Row, Shape
from worker.store.tables.shapes import Time, Told


class NotificationChannel(Row, table=True):
    """An address that is told about runs: a webhook, an e-mail address, or the open pages of its owner."""

    __tablename__ = "notification_channel"

    id: str = Field(primary_key=True, max_length=32)
    owner: str = Field(max_length=120, index=True, description="an account, or the server's own user")
    kind: ChannelKind = Field(sa_column=Column(as_text(ChannelKind), nullable=False))
    address: str = Field(
        sa_column=Column(Text, nullable=False), description="URL or e-mail address; a webhook's URL is a secret"
    )
    format: WebhookFormat = Field(
        default=WebhookFormat.JSON, sa_column=Column(as_text(WebhookFormat), nullable=False), description="of a webhook"
    )
    events: list[str] = json_value("values of Event")
    everyone: bool = flag("for the runs of all users")
    created_at: Time


class Notification(Row, table=True):
    """A message that a channel gets about an event, once. Kept for a month after it was sent."""

    __table_args__ = (
        UniqueConstraint("channel_id", "run_id", "attempt", "event"),
        Index("ix_notification_due", "done_at", "next_try_at"),
    )

    id: int | None = Field(default=None, primary_key=True, sa_type=ROW_ID)
    channel_id: str = Field(foreign_key="notification_channel.id", ondelete="CASCADE", max_length=32)
    run_id: str | None = Field(
        default=None, foreign_key="run.id", ondelete="CASCADE", index=True, description="none for a test"
    )
    attempt: int = 0
    event: Event = Field(sa_column=Column(as_text(Event), nullable=False))
    run: Annotated[dict[str, Any], Shape(Told)] = json_value("the run when it happened; empty for a test")
    created_at: Time = Field(index=True)
    tries: int = Field(default=0, description="counts claims; results of an older claim are refused")
    next_try_at: Time = Field(
        description="not before, by the database's clock; while it is being sent, when the claim ends"
    )
    done_at: Time | None = Field(default=None, description="when it was delivered or given up")
    delivered: bool = flag()
    reason: str = text("why the last try failed")


class Preferences(Row, table=True):
    """What a user prefers; no row until they change something."""

    owner: str = Field(primary_key=True, max_length=120)
    model: str = text("of a new form on New run")
    plots: dict[str, Any] | None = json_or_null(
        "axis, smoothing, order and so on, as static/plot-options.js keeps them"
    )
    tour: list[str] = json_list("steps of the tour that leave no other trace")
    price_gpu_hour: str = text("one price, or name=price of GPUs", added=True)
    price_kwh: str = Field(default="", max_length=40, sa_column_kwargs={"server_default": ""})
