"""`lathe notify`: the webhooks and e-mail addresses that get a message when a run ends or its loss is not finite."""

import json

import click

from app.cli.client import connect, path_of
from app.cli.options import Group, json_option
from app.format import numbers
from worker.choices import USUAL_EVENTS, Event, WebhookFormat

_PATH = "/api/notifications"

EVENTS = [event.value for event in Event if event.offered]
channel_argument = click.argument("channel_id", metavar="CHANNEL")


@click.group(cls=Group)
def notify() -> None:
    """Send notifications about runs by webhook or e-mail.

    CHANNEL is an id of `lathe notify list`.
    """


@notify.command("list")
@json_option
def listing(as_json: bool) -> None:
    """List your channels, and the latest messages with their outcome."""
    found = connect().get(_PATH)
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


@notify.command
@click.argument("address", metavar="ADDRESS")
@click.option(
    "--event", "events", multiple=True, type=click.Choice(EVENTS),
    help="Event to tell about, several times if needed.  [default: " + ", ".join(USUAL_EVENTS) + "]",
)  # fmt: skip
@click.option(
    "--format",
    "form",
    type=click.Choice([form.value for form in WebhookFormat]),
    help="Body of a webhook's request.  [default: by the host]",
)
@click.option("--everyone", is_flag=True, help="For the runs of all users (admins only).")
@json_option
def add(address: str, events: tuple[str, ...], form: str | None, everyone: bool, as_json: bool) -> None:
    """Add a webhook or an e-mail address.

    ADDRESS is the URL of a webhook (Slack, Discord, Mattermost, ntfy or your own), or an e-mail address.
    """
    events = events or USUAL_EVENTS
    wanted = {"address": address, "events": events, "format": form, "everyone": everyone}
    made = connect().send("POST", _PATH, json=wanted)
    said = f"Added {made['address']} as {made['id']}. `lathe notify test {made['id']}` sends a test."
    click.echo(json.dumps(made) if as_json else said)


@notify.command
@channel_argument
@json_option
def remove(channel_id: str, as_json: bool) -> None:
    """Remove a channel."""
    connect().send("DELETE", path_of("notifications", channel_id))
    click.echo(json.dumps({"id": channel_id, "removed": True}) if as_json else f"Removed {channel_id}.")


@notify.command
@channel_argument
@json_option
@click.pass_context
def test(ctx: click.Context, channel_id: str, as_json: bool) -> None:
    """Send a test message and print the outcome. Exit code 1 if it was not accepted."""
    sent = connect().send("POST", path_of("notifications", channel_id, "/test"))
    delivered = sent["state"] == "delivered"
    said = "Delivered." if delivered else f"Not delivered. {sent['reason']}"
    click.echo(json.dumps(sent) if as_json else said)
    ctx.exit(0 if delivered else 1)
