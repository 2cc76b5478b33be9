"""The panels of the page Settings, as HTML. Pure."""

import json
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from app.pages.common.html import ago, each, note_html, pairs_table, send_button, table

EVENT_WORDS = {"finished": "Finished", "failed": "Failed", "stopped": "Stopped", "diverged": "Loss not finite"}
_ROLES = {
    "runs the server": "the user who runs the server: may change everything",
    "admin": "admin: may change all runs and data sets, and manages users",
    "user": "user: changes own runs and data sets",
}

Document = dict[str, Any]


def account_html(account: Document) -> Markup:
    """The caller's name, role and token."""
    pairs = [
        (
            "Name",
            Markup('<b>{}</b> <span class="faint">owner of your runs and data sets</span>').format(account["name"]),
        ),
        ("Role", _ROLES[account["role"]]),
        (
            "Token",
            f"exists, {account['token']}"
            if account["token"]
            else "none; the proxy in front of the server signs you in",
        ),
    ]
    button = Markup("""<button type="button" class="button small" data-send='{"rotate":true}'>Replace token</button>""")
    shown = button if account["token"] else ""
    return Markup('<header><h2>Account</h2><div class="aside">{}</div></header>{}').format(shown, pairs_table(pairs))


def token_html(name: str, token: str, *, signed_in: bool) -> Markup:
    """A new token, shown once."""
    again = " This browser is signed in with the old token: sign in again with the new one." if signed_in else ""
    return Markup(
        '<div class="banner token-once" role="status"><b>The new token of {}.</b> It is shown only now; the old one no longer '
        'works.{}<span class="copy-line"><code>{}</code><button type="button" class="button small" data-copy="{}">Copy</button>'
        "</span></div>"
    ).format(name, again, token, token)


def users_html(users: Sequence[Document] | None) -> Markup:
    """The accounts with their buttons; None for callers who may not see them."""
    head = Markup("<header><h2>Colleagues</h2></header>")
    if users is None:
        return head + Markup(
            '<p class="note">An admin adds and removes accounts. Ask one if a colleague needs access.</p>'
        )
    if not users:
        text = "No accounts yet. Add one for each colleague: each gets a token, and changes only their own runs and data sets."
        return head + note_html(text)
    rows = [
        (
            one["name"],
            "admin" if one["admin"] else "user",
            ago(one["created_at"]),
            send_button("New token", {"rotate_user": one["name"]}, f"New token for {one['name']}"),
            send_button("Remove", {"remove_user": one["name"]}, f"Remove {one['name']}"),
        )
        for one in users
    ]
    heads = each(
        "<th>{}</th>", [("Name",), ("Role",), ("Added",), (Markup('<span class="hidden-text">Actions</span>'),)]
    )
    body = each('<tr><td>{}</td><td>{}</td><td>{}</td><td><div class="acts">{}{}</div></td></tr>', rows)
    return head + table("list users", heads, body)


def channels_html(channels: Sequence[Document], caller: str, outcomes: dict[str, Document]) -> Markup:
    """The channels with their events and buttons, and the line of this browser. `outcomes`: the latest test of each."""
    rows = Markup("").join(
        _channel(one, caller, outcomes.get(one["id"])) for one in channels if one["kind"] != "browser"
    )
    browser = next((one for one in channels if one["kind"] == "browser" and one["owner"] == caller), None)
    return Markup(
        '<header><h2>Notifications</h2></header><p class="note">You get a message when one of your runs ends, fails, or has a loss '
        'that is not finite. Press an event to turn it on or off.</p><ul class="channels">{}{}</ul>'
    ).format(rows, _browser(browser["events"] if browser else []))


def _channel(channel: Document, caller: str, outcome: Document | None) -> Markup:
    kind = {"json": "Webhook, JSON", "slack": "Webhook, text", "discord": "Webhook, Discord", "ntfy": "Webhook, ntfy"}
    words = [kind.get(channel["format"] or "", "E-mail")]
    words += ["runs of all users"] if channel["everyone"] else []
    words += [f"added by {channel['owner']}"] if channel["owner"] != caller else []
    acts = send_button("Send a test", {"test": channel["id"]}, f"Send a test to {channel['address']}", busy="Sending…")
    acts += send_button("Remove", {"remove_channel": channel["id"]}, f"Remove {channel['address']}")
    return Markup('<li data-channel="{}"><div class="what"><code>{}</code><span class="faint">{}</span></div>{}{}{}</li>').format(
        channel["id"], channel["address"], ", ".join(words), _events(channel["events"], {"channel": channel["id"]}),
        Markup('<div class="acts">{}</div>').format(acts), _outcome(outcome),
    )  # fmt: skip


def _browser(events: Sequence[str]) -> Markup:
    acts = Markup(
        '<button type="button" class="button small" data-allow hidden>Allow</button>'
        '<button type="button" class="button small" data-test-browser hidden>Send a test</button>'
    )
    return Markup(
        '<li data-browser data-events="{}"><div class="what"><b>This browser</b>'
        '<span class="faint" data-browser-state>&nbsp;</span></div>{}<div class="acts">{}</div>'
        '<p class="outcome" data-browser-outcome role="status"></p></li>'
    ).format(",".join(events), _events(events, {"browser": True}), acts)


def _events(chosen: Sequence[str], about: Document) -> Markup:
    chips = [
        (json.dumps(about | {"event": event, "on": event not in chosen}), str(event in chosen).lower(), word)
        for event, word in EVENT_WORDS.items()
    ]
    return Markup('<div class="chips" role="group" aria-label="Events">{}</div>').format(
        each('<button type="button" class="chip" data-send="{}" aria-pressed="{}">{}</button>', chips)
    )


def _outcome(message: Document | None) -> Markup:
    if message is None:
        return Markup("")
    if message["state"] == "delivered":
        return Markup('<p class="outcome good" role="status">Test delivered {}.</p>').format(ago(message["done_at"]))
    return Markup('<p class="outcome bad" role="status">Test not delivered. {}</p>').format(message["reason"])


def messages_html(messages: Sequence[Document]) -> Markup:
    """The latest messages with their outcome."""
    head = Markup("<header><h2>Sent</h2></header>")
    if not messages:
        return head + Markup('<p class="note">Nothing was sent yet. Messages appear here with their outcome.</p>')
    rows = [
        (ago(one["created_at"]), EVENT_WORDS.get(one["event"], "Test"), _run(one), one["address"] or "", _state(one))
        for one in messages
    ]
    body = each(
        '<tr><td>{}</td><td>{}</td><td class="name">{}</td><td class="to">{}</td><td class="state">{}</td></tr>', rows
    )
    return head + table("list messages", ["When", "Event", "Run", "To", "Outcome"], body)


def _run(message: Document) -> Markup:
    if message["run"] is None:
        return Markup('<span class="faint">-</span>')
    return Markup('<a href="/run?id={}">{}</a>').format(message["run"], message["name"])


def _state(message: Document) -> Markup:
    state, tries = message["state"], message["tries"]
    if state == "delivered":
        return Markup('<span class="good">Delivered</span>{}').format(f", try {tries}" if tries > 1 else "")
    if state == "waiting":
        return Markup("Waiting for a worker to send it")
    if state == "given up":
        return Markup('<span class="bad">Not delivered.</span> {}').format(message["reason"])
    again = Markup('Try {} in <span data-until="{}"></span>').format(tries + 1, message["next_try_at"])
    return Markup('<span class="warn">Try {} failed.</span> {} {}.').format(tries, message["reason"], again)


def folders_html(heading: str, entries: Sequence[Document]) -> Markup:
    """Values of the installation, each with where it comes from."""
    rows = [
        (
            one["name"], one["about"],
            Markup("<code>{}</code>").format(one["value"]) if one["value"] else Markup('<span class="faint">not set</span>'),
            _source(one),
        )
        for one in entries
    ]  # fmt: skip
    body = each('<tr><th>{}<span class="faint">{}</span></th><td class="value">{}</td><td>{}</td></tr>', rows)
    return Markup("<section><header><h2>{}</h2></header>{}</section>").format(
        heading, table("list folders", ["What", "Value", "From"], body)
    )


def _source(entry: Document) -> Markup:
    if entry["variable"] is None:
        return Markup('<span class="faint">{}</span>').format(entry["source"])
    if entry["source"] == "default":
        return Markup("default of <code>{}</code>").format(entry["variable"])
    return Markup("<code>{}</code>").format(entry["variable"])
