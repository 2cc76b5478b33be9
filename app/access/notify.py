"""Notification channels and preferences of the caller; each change with a permission check."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from app.access import callers
from app.access.permissions import check_admin, check_change
from training.errors import UserError
from worker.forecasts import prices
from worker.notifications import addresses, delivery, mail
from worker.settings import get_settings
from worker.store import accounts, channels, database, outbox
from worker.store.channels import ChannelError
from worker.store.tables import ChannelKind, Notification, NotificationChannel, Preferences, WebhookFormat

TEST_SECONDS = 10.0
"""Between two tests of a channel of an ordinary user."""


class TooSoon(UserError):  # noqa: N818
    """The channel was tested a moment ago."""

    status = 429


@dataclass(frozen=True)
class Wish:
    """A channel to add: a webhook's URL or an e-mail address. `format` None: by the host of the URL."""

    address: str
    events: tuple[str, ...]
    format: WebhookFormat | None = None
    everyone: bool = False


def listing() -> list[NotificationChannel]:
    """The caller's channels; for admins also those of others for the runs of all users."""
    caller = callers.current()
    with database.read() as session:
        found = channels.of_owner(session=session, owner=caller.name)
        known = {channel.id for channel in found}
        if caller.administers:
            found += [one for one in channels.for_everyone(session=session) if one.id not in known]
    return found


def add(wish: Wish) -> NotificationChannel:
    """Adds a channel.

    Raises:
        AddressError: the address cannot be used, or the caller may not use it.
        ChannelError: it exists, there are too many, or an event is unknown.
        Forbidden: it is for the runs of all users, and the caller is no admin.
    """
    caller = callers.current()
    if wish.everyone:
        check_admin("everyone", None, "tells about the runs of all users.")
    kind, address = _checked(wish.address.strip())
    form = wish.format or addresses.guessed_format(address)
    with database.write() as session:
        return channels.add(
            session=session, owner=caller.name, kind=kind, address=address, events=wish.events,
            format=form if kind is ChannelKind.WEBHOOK else WebhookFormat.JSON, everyone=wish.everyone,
        )  # fmt: skip


def _checked(address: str) -> tuple[ChannelKind, str]:
    if addresses.is_email(address):
        if not mail.configured(get_settings()):
            fix = "Ask an administrator to set LATHE_SMTP_URL (docs/notifications.md), or enter a webhook's URL."
            raise ChannelError("address", address[:100], "cannot be used: this installation has no mail server.", fix)
        return ChannelKind.EMAIL, addresses.email(address)
    caller = callers.current()
    hook = addresses.webhook(address, trusted=caller.administers)
    if not hook.free:
        addresses.check_reachable(hook)
    return ChannelKind.WEBHOOK, hook.url


def set_events(channel_id: str, events: Collection[str]) -> NotificationChannel:
    """Replaces the events of a channel.

    Raises:
        ChannelNotFound: there is none.
        Forbidden: another user owns it.
        ChannelError: an event is unknown, or there is none.
    """
    _own(channel_id)
    with database.write() as session:
        return channels.set_events(session=session, channel_id=channel_id, events=events)


def remove(channel_id: str) -> None:
    """Removes a channel. Raises ChannelNotFound if there is none, and Forbidden if another user owns it."""
    _own(channel_id)
    with database.write() as session:
        channels.remove(session=session, channel_id=channel_id)


def test(channel_id: str) -> Notification:
    """Sends a test message now and returns it with the outcome.

    Raises:
        ChannelNotFound: there is none.
        Forbidden: another user owns it.
        TooSoon: an ordinary user has tested it a moment ago.
    """
    channel, caller = _own(channel_id), callers.current()
    with database.read() as session:
        now = database.now(session=session)
        latest = outbox.latest_test(session=session, channel_id=channel.id)
    if latest is not None and now - latest < TEST_SECONDS and not caller.administers:
        raise TooSoon(
            "channel", channel.id, "was tested a moment ago.", f"Wait {TEST_SECONDS:.0f} s and test it again."
        )
    return delivery.send_test(channel.id)


def set_browser(events: Collection[str]) -> None:
    """Sets the events that the caller's open pages show; none turns them off.

    Raises:
        ChannelError: an event is unknown.
    """
    caller = callers.current()
    with database.write() as session:
        mine = channels.of_owner(session=session, owner=caller.name)
        found = next((one for one in mine if one.kind is ChannelKind.BROWSER), None)
        if found and events:
            channels.set_events(session=session, channel_id=found.id, events=events)
        elif found:
            channels.remove(session=session, channel_id=found.id)
        elif events:
            channels.add(
                session=session, owner=caller.name, kind=ChannelKind.BROWSER, address="this browser", events=events
            )


def for_browser(after: int | None) -> tuple[list[Notification], int]:
    """What the caller's open pages show after the message `after`, and the id to continue after."""
    with database.read() as session:
        return outbox.for_browser(session=session, owner=callers.current().name, after=after)


def history() -> list[tuple[Notification, NotificationChannel]]:
    """The latest messages to the caller's channels, the newest first."""
    with database.read() as session:
        return outbox.recent(session=session, owner=callers.current().name)


def current_preferences() -> Preferences:
    """The caller's preferences."""
    with database.read() as session:
        return accounts.preferences_of(session=session, owner=callers.current().name)


def change_preferences(**values: Any) -> Preferences:
    """Stores the model that the caller's forms on New run begin with, how they arranged plots, or what they pay for a GPU hour
    and a kWh.

    `values` are some of `model`, `plots`, `price_gpu_hour` and `price_kwh`.

    Raises:
        BadPreference: the model is too long.
        PriceError: a price is no number, or a GPU is unknown.
    """
    prices.parse(values.get("price_gpu_hour", ""), values.get("price_kwh", ""))
    with database.write() as session:
        return accounts.change_preferences(session=session, owner=callers.current().name, **values)


def add_tour_step(step: str) -> None:
    """Stores that the caller has done a step of the tour."""
    with database.write() as session:
        accounts.add_tour_step(session=session, owner=callers.current().name, step=step)


def _own(channel_id: str) -> NotificationChannel:
    with database.read() as session:
        channel = channels.get(session=session, channel_id=channel_id)
    check_change("channel", channel.id, channel.owner)
    return channel
