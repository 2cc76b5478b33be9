"""`lathe notify`: the webhooks and e-mail addresses that get a message when a run ends or its loss is not finite."""

import json
from typing import Any
from urllib.parse import quote

import click

from app.cli.errors import Command
from app.cli.options import Group, json_option, ready
from app.cli.sources.server import chosen

_PATH = "/api/notifications"

EVENTS = ("finished", "failed", "stopped", "diverged")
FORMATS = ("json", "slack", "discord", "ntfy")
channel_argument = click.argument("channel_id", metavar="CHANNEL")


@click.group(cls=Group)
def notify() -> None:
    """Send notifications about runs by webhook or e-mail.

    CHANNEL is an id of `lathe notify list`.
    """


@notify.command("list", cls=Command)
@json_option
def listing(as_json: bool) -> None:
    """List your channels, and the latest messages with their outcome."""
    from app.words import numbers

    found = _document()
    if as_json:
        click.echo(json.dumps(found))
        return
    if not found["channels"]:
        click.echo("No channels yet. Add one with `lathe notify add URL` or `lathe notify add NAME@HOST`.")
        return
    rows = [["CHANNEL", "ADDRESS", "FORMAT", "EVENTS", "RUNS"]]
    for one in found["channels"]:
        runs = "of all users" if one["everyone"] else f"of {one['owner']}"
        rows.append([one["id"], one["address"], one["format"] or one["kind"], ",".join(one["events"]), runs])
    click.echo(numbers.table(rows))
    if found["messages"]:
        lines = [["SENT", "EVENT", "RUN", "TO", "STATE", "REASON"]]
        for one in found["messages"]:
            state = numbers.when(one["created_at"]), one["event"], one["run"] or "", one["address"] or "", one["state"]
            lines.append([*state, one["reason"]])
        click.echo(f"\n{numbers.table(lines)}")


@notify.command(cls=Command)
@click.argument("address", metavar="ADDRESS")
@click.option(
    "--event", "events", multiple=True, type=click.Choice(EVENTS),
    help="Event to tell about, several times if needed.  [default: finished, failed, diverged]",
)  # fmt: skip
@click.option(
    "--format", "form", type=click.Choice(FORMATS), help="Body of a webhook's request.  [default: by the host]"
)
@click.option("--everyone", is_flag=True, help="For the runs of all users (admins only).")
@json_option
def add(address: str, events: tuple[str, ...], form: str | None, everyone: bool, as_json: bool) -> None:
    """Add a webhook or an e-mail address.

    ADDRESS is the URL of a webhook (Slack, Discord, Mattermost, ntfy or your own), or an e-mail address.
    """
    made = _add(address, events or ("finished", "failed", "diverged"), form, everyone=everyone)
    said = f"Added {made['address']} as {made['id']}. `lathe notify test {made['id']}` sends a test."
    click.echo(json.dumps(made) if as_json else said)


@notify.command(cls=Command)
@channel_argument
@json_option
def remove(channel_id: str, as_json: bool) -> None:
    """Remove a channel."""
    if server := chosen():
        server.send("DELETE", f"{_PATH}/{quote(channel_id, safe='')}")
    else:
        from app.access import notify

        ready()
        notify.remove(channel_id)
    click.echo(json.dumps({"id": channel_id, "removed": True}) if as_json else f"Removed {channel_id}.")


@notify.command(cls=Command)
@channel_argument
@json_option
@click.pass_context
def test(ctx: click.Context, channel_id: str, as_json: bool) -> None:
    """Send a test message and print the outcome. Exit code 1 if it was not accepted."""
    sent = _test(channel_id)
    delivered = sent["state"] == "delivered"
    said = "Delivered." if delivered else f"Not delivered. {sent['reason']}"
    click.echo(json.dumps(sent) if as_json else said)
    ctx.exit(0 if delivered else 1)


def _document() -> dict[str, Any]:
    """The channels and the latest messages, as `lathe notify list --json` prints them."""
    if server := chosen():
        return dict(server.get(_PATH))
    from app.access import notify
    from app.documents.notifications import document

    ready()
    return document(notify.listing(), notify.history())


def _add(address: str, events: tuple[str, ...], form: str | None, *, everyone: bool) -> dict[str, Any]:
    """Adds a channel and returns it."""
    if server := chosen():
        wanted = {"address": address, "events": list(events), "format": form, "everyone": everyone}
        return dict(server.send("POST", _PATH, json=wanted))
    from app.access import notify
    from app.documents.notifications import channel_document
    from worker.store.tables import WebhookFormat

    ready()
    wish = notify.Wish(address, events, WebhookFormat(form) if form else None, everyone)
    return channel_document(notify.add(wish))


def _test(channel_id: str) -> dict[str, Any]:
    """Sends a test message and returns it with the outcome."""
    if server := chosen():
        return dict(server.send("POST", f"{_PATH}/{quote(channel_id, safe='')}/test"))
    from app.access import notify
    from app.documents.notifications import message_document

    ready()
    return message_document(notify.test(channel_id))
