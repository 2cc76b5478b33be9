"""REST routes of the caller's settings: account, token, preferences, the installation's folders, notifications, and the tour."""

from typing import Annotated

from fastapi import Body, Depends, Query
from pydantic import Field

from app.access import callers, users
from app.access.permissions import check_admin, check_change
from app.documents import preferences as documents
from app.documents.tour import Step
from app.documents.users import NewToken
from app.web.rest.routing import BodyForm, JsonRouter, ShortText
from training.errors import UserError
from worker.choices import USUAL_EVENTS
from worker.forecasts import prices
from worker.notifications import addresses, delivery, mail
from worker.settings import get_settings
from worker.store import accounts, channels, database, outbox
from worker.store.accounts import LONGEST_MODEL
from worker.store.channels import ChannelError
from worker.store.tables import ChannelKind, NotificationChannel, WebhookFormat

router = JsonRouter(prefix="/api")
TEST_SECONDS = 10.0
"""Between two tests of a channel of an ordinary user."""


EventNames = Annotated[list[ShortText], Field(max_length=20)]
PlotKeys = Annotated[list[Annotated[str, Field(max_length=200)]], Field(max_length=200)]


class TooSoon(UserError):  # noqa: N818
    """The channel was tested a moment ago."""

    status = 429


class PlotOptions(BodyForm):
    """What the caller chose for the plots of all pages; `order` and `without` are keys of plots."""

    axis: str = Field(max_length=20)
    smoothing: str = Field(max_length=20)
    log: bool
    clip: bool
    order: PlotKeys
    without: PlotKeys = Field(description="the hidden ones")


class NewPreferences(BodyForm):
    """What the caller prefers; what is left out stays."""

    model: str | None = Field(None, max_length=LONGEST_MODEL)
    price_gpu_hour: ShortText | None = None
    price_kwh: ShortText | None = None
    plots: PlotOptions | None = None


class NewChannel(BodyForm):
    """A channel to add: a webhook's URL or an e-mail address. Without `format`, the host of the URL decides."""

    address: str = Field(max_length=2000)
    events: EventNames = Field([*USUAL_EVENTS])
    format: WebhookFormat | None = None
    everyone: bool = False


class Events(BodyForm):
    """The events of a channel: finished, failed, stopped, diverged."""

    events: EventNames


def _own_channel(channel_id: str) -> NotificationChannel:
    with database.read() as session:
        channel = channels.get(session=session, channel_id=channel_id)
    check_change("channel", channel.id, channel.owner)
    return channel


OwnChannel = Annotated[NotificationChannel, Depends(_own_channel)]


@router.get("/settings")
def show_settings() -> documents.SettingsAnswer:
    """The caller's account and preferences, and the folders and services of the installation with their variables."""
    admin, settings = callers.current().administers, get_settings()
    return documents.SettingsAnswer(
        account=users.own(),
        preferences=documents.Preferences.model_validate(users.own_preferences()),
        folders=documents.folders(settings, admin=admin),
        services=documents.services(settings, admin=admin),
    )


@router.put("/settings")
def change_settings(wanted: Annotated[NewPreferences, Body()]) -> documents.SettingsAnswer:
    """Changes the caller's preferences."""
    values = wanted.model_dump(exclude_none=True)
    prices.parse(values.get("price_gpu_hour", ""), values.get("price_kwh", ""))
    with database.write() as session:
        accounts.change_preferences(session=session, owner=callers.current().name, **values)
    return show_settings()


@router.post("/settings/token")
def rotate_own_token() -> NewToken:
    """Replaces the caller's token; the old one stops working. The answer holds the new one, only this once."""
    return NewToken(name=callers.current().name, token=users.rotate_own())


@router.get("/notifications")
def list_channels() -> documents.ChannelList:
    """The caller's channels, and the latest messages to them with their outcome, the newest first."""
    return documents.channel_list(users.own_channels(), users.own_messages())


@router.post("/notifications", status_code=201)
def add_channel(wanted: Annotated[NewChannel, Body()]) -> documents.Channel:
    """Adds a webhook or an e-mail address. `everyone`, for admins: tells about the runs of all users."""
    if wanted.everyone:
        check_admin("everyone", None, "tells about the runs of all users.")
    kind, address = _checked(wanted.address.strip())
    form = wanted.format or addresses.guessed_format(address)
    with database.write() as session:
        channel = channels.add(
            session=session, owner=callers.current().name, kind=kind, address=address, events=wanted.events,
            format=form if kind is ChannelKind.WEBHOOK else WebhookFormat.JSON, everyone=wanted.everyone,
        )  # fmt: skip
    return documents.Channel.of(channel)


def _checked(address: str) -> tuple[ChannelKind, str]:
    """The kind of an address, and the address as it is stored. Raises AddressError or ChannelError if it cannot be used."""
    if addresses.is_email(address):
        if not mail.configured(get_settings()):
            fix = "Ask an administrator to set LATHE_SMTP_URL (docs/notifications.md), or enter a webhook's URL."
            raise ChannelError("address", address[:100], "cannot be used: this installation has no mail server.", fix)
        return ChannelKind.EMAIL, addresses.email(address)
    hook = addresses.webhook(address, trusted=callers.current().administers)
    if not hook.free:
        addresses.check_reachable(hook)
    return ChannelKind.WEBHOOK, hook.url


@router.get("/notifications/browser")
def show_in_browser(after: Annotated[int | None, Query(ge=0)] = None) -> documents.BrowserMessages:
    """What an open page of the caller shows after the message `after`; without it only `next`, the id to continue after."""
    with database.read() as session:
        messages, following = outbox.for_browser(session=session, owner=callers.current().name, after=after)
    return documents.BrowserMessages(
        messages=[documents.BrowserMessage.of(message) for message in messages], next=following
    )


@router.put("/notifications/browser")
def set_browser_events(wanted: Annotated[Events, Body()]) -> documents.BrowserEvents:
    """Sets the events that the caller's open pages show; an empty list turns them off."""
    owner, events = callers.current().name, wanted.events
    with database.write() as session:
        own = channels.of_owner(session=session, owner=owner)
        found = next((channel for channel in own if channel.kind is ChannelKind.BROWSER), None)
        if found and events:
            channels.set_events(session=session, channel_id=found.id, events=events)
        elif found:
            channels.remove(session=session, channel_id=found.id)
        elif events:
            kind, address = ChannelKind.BROWSER, "this browser"
            channels.add(session=session, owner=owner, kind=kind, address=address, events=events)
    return documents.BrowserEvents(events=wanted.events)


@router.put("/notifications/{channel_id}")
def change_channel(own: OwnChannel, wanted: Annotated[Events, Body()]) -> documents.Channel:
    """Replaces the events of a channel."""
    with database.write() as session:
        return documents.Channel.of(channels.set_events(session=session, channel_id=own.id, events=wanted.events))


@router.delete("/notifications/{channel_id}", status_code=204)
def remove_channel(own: OwnChannel) -> None:
    """Removes a channel."""
    with database.write() as session:
        channels.remove(session=session, channel_id=own.id)


@router.post("/notifications/{channel_id}/test")
def test_channel(own: OwnChannel) -> documents.Message:
    """Sends a test message now; the answer holds its outcome: `state` is delivered or given up, with the `reason`."""
    with database.read() as session:
        now, latest = database.now(session=session), outbox.latest_test(session=session, channel_id=own.id)
    if latest is not None and now - latest < TEST_SECONDS and not callers.current().administers:
        fix = f"Wait {TEST_SECONDS:.0f} s and test it again."
        raise TooSoon("channel", own.id, "was tested a moment ago.", fix)
    return documents.Message.of(delivery.send_test(own.id))


@router.put("/tour/{step}", status_code=204)
def note_step(step: Step) -> None:
    """Notes that the caller has done a step of the tour."""
    users.add_tour_step(step)
