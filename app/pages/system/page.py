"""The page System, at /system: machines, devices, disk, queue and services; frees disk space, removes machines."""

from typing import Any

import gradio as gr
from markupsafe import Markup

from app.access import callers, changes
from app.documents import disk, services, system
from app.pages.common import viewers
from app.pages.common.cache import TimedCache
from app.pages.common.dialog import asking, dialog
from app.pages.common.html import QUIET, database_unreachable, html
from app.pages.common.viewers import Viewers
from app.pages.system.disk_html import confirmation, disk_html
from app.pages.system.machines_html import machines_html
from app.pages.system.panels_html import accounts_html, aside_html, engines_html, services_html
from app.words.system import summary
from training.errors import UserError
from worker.disk import background
from worker.disk.offers import Freeable
from worker.store import database
from worker.store.database import UNREACHABLE

_REFRESH_SECONDS = 3.0
_FLEET_SECONDS, _SERVICES_SECONDS = 5.0, 15.0  # leases and loads change all the time, and every change is sent
_PARTS = 4  # heading, machines, services, disk

Shown = tuple[str, ...]
"""The HTML of each part that a browser shows."""

_fleets: TimedCache[str, dict[str, Any]] = TimedCache(_FLEET_SECONDS)
_services: TimedCache[str, dict[str, Any]] = TimedCache(_SERVICES_SECONDS)
_viewers: Viewers[Shown] = Viewers()


def build(demo: gr.Blocks) -> None:
    """Components, handlers and wiring of the page."""
    heading, clicks = html(_heading([])), "lathe.sendClicks(element, trigger); watch('value', lathe.updateTimes)"
    machines, offered = html(script=clicks), html(script=clicks)
    listed = html(script="watch('value', lathe.updateTimes)")
    asks = dialog("Delete", "confirm-delete")
    parts = [heading, machines, listed, offered]
    demo.load(opened, None, parts, **QUIET)
    gr.Timer(_REFRESH_SECONDS).tick(refreshed, None, parts, **QUIET)
    for source in (machines, offered):
        source.select(pressed, None, asks.outputs, **QUIET)
    asks.confirm.click(confirmed, asks.asked, [*asks.outputs[:3], *parts], **QUIET)


def opened(request: gr.Request) -> list[Any]:
    """All parts of the page."""
    return _viewers.serve(request.session_hash, lambda _: _changed(()))


def refreshed(request: gr.Request) -> list[Any]:
    """The parts that changed since this browser's last answer."""
    return _viewers.serve(request.session_hash, lambda shown: _changed(shown or ()))


def pressed(event: gr.EventData) -> list[Any]:
    """A button in a part: asks before anything is deleted."""
    action = event._data if isinstance(event._data, dict) else {}
    if name := action.get("remove"):
        text = "It reappears when its worker starts again. Its runs and their files stay."
        return asking(f"Remove {name}?", text, "Remove", action)
    if name := action.get("use"):
        text = "Runs on several machines use it again, and its failures are forgotten."
        return asking(f"Use {name} again?", text, "Use again", action)
    if action.get("measure"):
        background.disk().measured(again=True)
    kinds = _kinds(action)
    if not kinds:
        return [gr.skip()] * 4
    offered = disk.document(background.disk().measured(), None, callers.current().may_change)
    return [
        gr.update(visible=True),
        confirmation(kinds, offered),
        gr.update(value="Delete", interactive=True),
        action,
    ]


def confirmed(action: dict[str, Any], request: gr.Request) -> list[Any]:
    """Does what was asked, or shows in the dialog why it is refused."""
    try:
        if name := action.get("remove"):
            changes.remove_machine(str(name))
        elif name := action.get("use"):
            changes.use_machine(str(name))
        elif kinds := _kinds(action):
            changes.free_disk(kinds)
    except UserError as error:
        return [*_message(Markup("<h2>Not done</h2><p>{}</p>").format(str(error))), *refreshed(request)]
    except UNREACHABLE:
        return [*_message(database_unreachable()), *refreshed(request)]
    _fleets.clear()
    return [gr.update(visible=False), gr.skip(), gr.skip(), *refreshed(request)]


def _changed(shown: Shown) -> tuple[Shown, list[Any]]:
    """What the page shows now, and its parts that differ from `shown`."""
    now = _parts()
    return now, viewers.changes(now, shown or ("",) * _PARTS)


def _parts() -> Shown:
    """The HTML of each part for the caller."""
    caller = callers.current()
    admin = caller.is_local or caller.admin
    measured = background.disk()
    figures = measured.measured()
    offered = disk.document(figures, measured.freed, caller.may_change)
    room = disk_html(offered, disk.retention_document(figures), admin=admin)
    try:
        fleet = _fleets.get("", _fleet)
        facts = _services.get("", lambda: services.document(fleet["machines"]))
    except UNREACHABLE:
        return _heading([]), database_unreachable(), "", room
    machines = aside_html(fleet["put_aside"], admin=admin) + engines_html(fleet["engines"])
    machines += machines_html(fleet, admin=admin) + accounts_html(fleet["accounts"])
    return _heading(summary(fleet)), machines, services_html(facts | fleet), room


def _fleet() -> dict[str, Any]:
    with database.read() as session:
        return system.fleet(session, background.disk().measured().usage)


def _heading(words: list[str]) -> Markup:
    return Markup('<div class="title"><h1>System</h1><div class="aside muted">{}</div></div>').format(" · ".join(words))


def _kinds(action: dict[str, Any]) -> list[Freeable]:
    """The kinds in a button's action; unknown ones are left out."""
    given = action.get("free")
    return [kind for kind in Freeable if isinstance(given, list) and kind.value in given]


def _message(message: Markup) -> list[Any]:
    """The dialog with a message and nothing to confirm."""
    return [gr.update(visible=True), message, gr.update(interactive=False)]
