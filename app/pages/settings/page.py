"""The page Settings, at /settings: account, colleagues, notifications, and where files are."""

from typing import Any

import gradio as gr
from markupsafe import Markup

from app.access import account, callers, notify, users
from app.access.notify import Wish
from app.documents import installation
from app.documents.notifications import channel_document, document
from app.pages.common.dialog import asking, dialog
from app.pages.common.html import QUIET, database_unreachable, html, problem_html, title
from app.pages.settings.html import (
    EVENT_WORDS,
    account_html,
    channels_html,
    folders_html,
    messages_html,
    token_html,
    users_html,
)
from app.pages.settings.prices import price_form, prices_saved
from training.errors import UserError
from worker.settings import get_settings
from worker.store.database import UNREACHABLE
from worker.store.tables import WebhookFormat

_CLICKS = "lathe.settings(element, trigger, watch)"
_FORMATS = [
    ("Format: by the host", ""), ("JSON", "json"), ("Slack, Mattermost: text", "slack"), ("Discord: content", "discord"),
    ("ntfy: plain text", "ntfy"),
]  # fmt: skip
_EVENTS = [(word, event) for event, word in EVENT_WORDS.items()]
_USUAL = ["finished", "failed", "diverged"]
_RESTART = "To change one, set its environment variable and start the server and the worker again."


def build(demo: gr.Blocks) -> None:
    """Components, handlers and wiring of the page."""
    title("Settings")
    asks = dialog("Remove", "confirm-setting")
    with gr.Row(elem_classes=["two-columns", "settings-page"]):
        with gr.Column(scale=6):
            with gr.Column(elem_classes="card"):
                channels = html(script=_CLICKS)
                address, form, events, everyone, add = _channel_form()
                channel_said = html()
            with gr.Column(elem_classes="card"):
                messages = html(script="watch('value', lathe.updateTimes)")
        with gr.Column(scale=5):
            with gr.Column(elem_classes="card"):
                shown_account, said = html(script=_CLICKS), html(script="lathe.copies(element)")
            with gr.Column(elem_classes="card"):
                model, save, saved = _model_form()
            with gr.Column(elem_classes="card"):
                gpu_hour, kwh, save_prices, priced = price_form()
            with gr.Column(elem_classes="card"):
                shown_users = html(script=_CLICKS)
                name, admin, new_user, user_row = _user_form()
                user_said = html(script="lathe.copies(element)")
    with gr.Column(elem_classes=["card", "settings-page"]):
        folders = html()
    panels = [shown_account, channels, messages, shown_users, folders]
    demo.load(settings_opened, None, [*panels, model, gpu_hour, kwh, everyone, user_row], **QUIET)
    outcome = [channels, messages, channel_said]
    form_fields = [address, form, events, everyone]
    gr.on([add.click, address.submit], channel_added, form_fields, [address, *outcome], **QUIET)
    channels.select(channel_pressed, None, [*asks.outputs, *outcome], trigger_mode="multiple", **QUIET)
    for place in (shown_account, shown_users):
        place.select(account_pressed, None, asks.outputs, **QUIET)
    gr.on([new_user.click, name.submit], user_added, [name, admin], [name, shown_users, user_said], **QUIET)
    gr.on([save.click, model.submit], model_saved, model, saved, **QUIET)
    gr.on([save_prices.click, gpu_hour.submit, kwh.submit], prices_saved, [gpu_hour, kwh], priced, **QUIET)
    confirmed = [asks.box, asks.question, asks.confirm, said, user_said, *panels]
    asks.confirm.click(setting_confirmed, asks.asked, confirmed, **QUIET)


def _channel_form() -> tuple[Any, ...]:
    with gr.Row(elem_classes="add-channel"):
        address = gr.Textbox(
            label="Webhook or e-mail address", placeholder="https://hooks.slack.com/services/... or you@example.org",
            elem_id="channel-address", elem_classes="setting", scale=4,
        )  # fmt: skip
        form = gr.Dropdown(
            _FORMATS, value="", label="Format", elem_id="channel-format", elem_classes="setting", scale=2
        )
    with gr.Row(elem_classes="add-channel"):
        events = gr.CheckboxGroup(
            _EVENTS, value=_USUAL, label="Events", elem_id="channel-events", elem_classes="setting"
        )
        everyone = gr.Checkbox(
            label="Runs of all users", visible=False, elem_id="channel-everyone", elem_classes="setting"
        )
        add = gr.Button("Add", variant="primary", elem_id="add-channel", scale=0, min_width=90)
    return address, form, events, everyone, add


def _model_form() -> tuple[Any, ...]:
    text = "A new form on New run begins with this folder or hub id. Leave it empty for none."
    html(Markup('<header><h2>New run</h2></header><p class="note">{}</p>').format(text))
    with gr.Row(elem_classes="add-channel"):
        model = gr.Textbox(
            label="Default model",
            elem_id="default-model", elem_classes="setting",
        )  # fmt: skip
        save = gr.Button("Save", elem_id="save-model", scale=0, min_width=90)
    return model, save, html()


def _user_form() -> tuple[Any, ...]:
    with gr.Row(elem_classes="add-channel", visible=False) as row:
        name = gr.Textbox(label="Name", elem_id="user-name", elem_classes="setting", max_length=64)
        admin = gr.Checkbox(label="Admin", elem_id="user-admin", elem_classes="setting")
        new_user = gr.Button("Add", elem_id="add-user", scale=0, min_width=90)
    return name, admin, new_user, row


def settings_opened() -> list[Any]:
    """All panels, and the parts of forms that only admins see."""
    try:
        kept = notify.current_preferences()
        shown = [value or gr.skip() for value in (kept.model, kept.price_gpu_hour, kept.price_kwh)]  # typed text stays
    except UNREACHABLE:
        shown = [gr.skip()] * 3
    return [*_panels(), *shown, gr.update(visible=_is_admin()), gr.update(visible=_is_admin())]


def channel_added(address: str, form: str, events: list[str], everyone: bool) -> list[Any]:
    """Adds a channel, or says why not; what was typed then stays."""
    wish = Wish(address or "", tuple(events or ()), WebhookFormat(form) if form else None, bool(everyone))
    try:
        added = notify.add(wish)
    except (UserError, *UNREACHABLE) as error:
        return [gr.skip(), gr.skip(), gr.skip(), problem_html(error)]
    said = _good(f"Added {channel_document(added)['address']}. Send a test to see whether messages arrive.")
    return ["", *_notifications(), said]


def channel_pressed(event: gr.EventData) -> list[Any]:
    """A button of a channel: an event turned on or off, a test, or the question before it is removed."""
    data = event._data if isinstance(event._data, dict) else {}
    keep = [gr.skip()] * 4
    if channel_id := data.get("remove_channel"):
        asked = {"remove_channel": str(channel_id)}
        text = "No more messages are sent to it, also none that wait to be sent."
        return [*asking("Remove this address?", text, "Remove", asked), *[gr.skip()] * 3]
    try:
        _change_channel(data)
    except (UserError, *UNREACHABLE) as error:
        return [*keep, *_notifications(), problem_html(error)]
    return [*keep, *_notifications(), ""]


def _change_channel(data: dict[str, Any]) -> None:
    match data:
        case {"test": str(channel_id)}:
            notify.test(channel_id)
        case {"channel": str(channel_id), "event": str(name), "on": bool(on)}:
            found = next((one for one in notify.listing() if one.id == channel_id), None)
            notify.set_events(channel_id, _switched(found.events if found else [], name, on=on))
        case {"browser": True, "event": str(name), "on": bool(on)}:
            notify.set_browser(_switched(_browser_events(), name, on=on))
        case {"browser": True, "events": [*names]}:
            notify.set_browser([str(name) for name in names])


def _switched(events: list[str], name: str, *, on: bool) -> list[str]:
    return [*events, name] if on else [event for event in events if event != name]


def _browser_events() -> list[str]:
    mine = (one for one in notify.listing() if one.kind == "browser" and one.owner == callers.current().name)
    return next((list(one.events) for one in mine), [])


def account_pressed(event: gr.EventData) -> list[Any]:
    """A button of the account or of a colleague: asks before anything is replaced or removed."""
    data = event._data if isinstance(event._data, dict) else {}
    if data.get("rotate"):
        text = "The old token stops working at once, also in browsers and programs that are signed in with it."
        return asking("Replace your token?", text, "Replace", {"rotate": True})
    if name := data.get("rotate_user"):
        text = "The old token stops working at once. The new one is shown here, once."
        return asking(f"Replace the token of {name}?", text, "Replace", {"rotate_user": str(name)})
    if name := data.get("remove_user"):
        text = (
            "The token stops working at once, and notifications end. Runs and data sets stay; admins can change them."
        )
        return asking(f"Remove {name}?", text, "Remove", {"remove_user": str(name)})
    return [gr.skip()] * 4


def user_added(name: str, admin: bool) -> list[Any]:
    """Adds an account and shows its token, once."""
    try:
        token = users.add((name or "").strip(), admin=bool(admin))
    except (UserError, *UNREACHABLE) as error:
        return [gr.skip(), gr.skip(), problem_html(error)]
    return ["", _users(), _new_token((name or "").strip(), token)]


def _new_token(name: str, token: str) -> Markup:
    return Markup(str(token_html(name, token, signed_in=False)).replace("; the old one no longer works", ""))  # noqa: S704


def model_saved(model: str) -> Markup:
    """Stores the default model."""
    try:
        kept = notify.set_model(model or "")
    except (UserError, *UNREACHABLE) as error:
        return problem_html(error)
    return _good(f"New forms begin with {kept.model}." if kept.model else "New forms begin without a model.")


def setting_confirmed(asked: dict[str, Any]) -> list[Any]:
    """Does what was asked, or shows in the dialog why it is refused."""
    said: Any = gr.skip()
    user_said: Any = gr.skip()
    try:
        match asked:
            case {"rotate": True}:
                caller = callers.current()
                said = token_html(caller.name, account.rotate(), signed_in=not caller.here)
            case {"rotate_user": str(name)}:
                user_said = token_html(name, users.rotate(name), signed_in=False)
            case {"remove_user": str(name)}:
                users.remove(name)
                user_said = _good(f"Removed {name}.")
            case {"remove_channel": str(channel_id)}:
                notify.remove(channel_id)
    except (UserError, *UNREACHABLE) as error:
        return [gr.update(visible=True), problem_html(error), gr.update(interactive=False), *[gr.skip()] * 7]
    return [gr.update(visible=False), gr.skip(), gr.skip(), said, user_said, *_panels()]


def _panels() -> list[Any]:
    """The HTML of each panel for the caller."""
    try:
        shown_account, shown_users = account_html(account.document()), _users()
        return [shown_account, *_notifications(), shown_users, _folders()]
    except UNREACHABLE:
        return [database_unreachable(), "", "", "", _folders()]


def _notifications() -> list[Any]:
    """Channels and messages."""
    try:
        found = document(notify.listing(), notify.history())
    except UNREACHABLE:
        return [database_unreachable(), ""]
    tests = {one["channel"]: one for one in reversed(found["messages"]) if one["event"] == "test"}
    return [channels_html(found["channels"], callers.current().name, tests), messages_html(found["messages"])]


def _users() -> Markup:
    return users_html(users.listing(usage=False) if _is_admin() else None)


def _folders() -> Markup:
    settings, admin = get_settings(), _is_admin()
    places = folders_html("Folders", installation.folders(settings, admin=admin))
    services = folders_html("For notifications", installation.services(settings, admin=admin))
    return Markup('<div class="places">{}{}</div><p class="note">{}</p>').format(places, services, _RESTART)


def _is_admin() -> bool:
    caller = callers.current()
    return caller.is_local or caller.admin


def _good(text: str) -> Markup:
    return Markup('<p class="note good" role="status">{}</p>').format(text)
