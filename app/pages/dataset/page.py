"""The page of one data set, at /dataset?id=ID&tab=...; its address holds the whole view."""

import random
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl

import gradio as gr
from markupsafe import Markup

from app.access import callers, changes
from app.access.permissions import Forbidden
from app.pages.common import issues, viewers
from app.pages.common.html import QUIET, database_unreachable, html, not_found
from app.pages.common.viewers import Viewers
from app.pages.dataset import html as parts_html
from app.pages.dataset import snapshot, tabs
from app.pages.dataset.columns import with_role
from app.pages.dataset.snapshot import Subject
from app.pages.dataset.view import View
from training.config.fields import settings
from training.data.mapping import write_mapping
from training.errors import DataError
from worker.datasets.datasets import DatasetNotFound
from worker.store.database import UNREACHABLE
from worker.store.tables import Dataset

WAITING_SECONDS, QUIET_SECONDS = 1.5, 10.0
_SCRIPT = "lathe.view(element, trigger, watch)"
_NAMES = ("set-head", "set-tabs", "set-tools", "set-body")


@dataclass(frozen=True)
class Shown:
    """What a page shows: the view, its parts as HTML, its refresh interval, and the answer to the last action."""

    view: View
    parts: tuple[str, ...]
    seconds: float = QUIET_SECONDS
    notice: Markup | str = ""


_viewers: Viewers[Shown] = Viewers()


def build(demo: gr.Blocks) -> None:
    """Components, handlers and wiring of the page."""
    with gr.Column(elem_classes="dataset-page"):
        parts = [html(script=_SCRIPT, classes=name) for name in _NAMES]
    timer = gr.Timer(QUIET_SECONDS)
    outputs = [*parts, timer]
    demo.load(opened, None, outputs, **QUIET)
    timer.tick(ticked, None, outputs, **QUIET)
    for part in parts:
        part.select(chosen, None, outputs, **QUIET)


def opened(request: gr.Request) -> list[Any]:
    """The page of the view in its address."""
    return _viewers.serve(request.session_hash, lambda _: _send(show(View.of(request.query_params)), None))


def ticked(request: gr.Request) -> list[Any]:
    """The parts that changed; all of them after a restart of the server."""
    return _viewers.serve(
        request.session_hash,
        lambda before: _send(show(_view(before, request), before.notice if before else ""), before),
    )


def chosen(event: gr.EventData, request: gr.Request) -> list[Any]:
    """The page after a link, a field or a button was used."""
    action: dict[str, Any] = event._data if isinstance(event._data, dict) else {}

    def answer(before: Shown | None) -> tuple[Shown | None, list[Any]]:
        view = _view(before, request)
        try:
            view, notice = act(view, action)
            return _send(show(view, notice), before)
        except (DatasetNotFound, *UNREACHABLE):
            return _send(show(view), before)  # `show` reports it

    return _viewers.serve(request.session_hash, answer)


def show(view: View, notice: Markup | str = "") -> Shown:
    """The page for a view; `notice` is the answer to the last action, such as why a number is invalid."""
    try:
        subject = snapshot.subject(view.id)
        view = _complete(view, subject)
        body, waiting = tabs.body(view, subject.item)
    except DatasetNotFound as error:
        reason = str(error) if view.id else "The address has no data set id."
        return _message_only(view, not_found("Data set not found", reason, "/datasets", "Show all data sets"))
    except UNREACHABLE:
        return _message_only(view, database_unreachable())
    users = [(user.id, user.name) for user in subject.users]
    head = parts_html.heading(subject.item, users, view) + parts_html.facts_html(subject.item)
    tools = parts_html.tools_html(view, snapshot.models()) + notice
    parts = (head, parts_html.tabs_html(view), tools, body)
    return Shown(view, tuple(map(str, parts)), WAITING_SECONDS if waiting else QUIET_SECONDS, notice)


def act(view: View, action: dict[str, Any]) -> tuple[View, Markup | str]:
    """Performs an action; returns the view to show and the answer to the user."""
    item = snapshot.subject(view.id).item
    if "save" in action or "forget" in action:
        return _save_mapping(view, keep="save" in action)
    if "again" in action:
        _again(view, item)
    if "stop" in action and view.search:
        snapshot.search(item, view).stop()
    if "random" in action:
        return replace(view, row=random.randint(1, max(item.rows, 1))), ""  # noqa: S311 not for security
    roles = {name.removeprefix("role."): str(path) for name, path in action.items() if name.startswith("role.")}
    if "address" in action:
        query = dict(parse_qsl(str(action["address"])))
        return View.of(query | {"id": view.id}), ""
    if not roles:
        fresh = {"match": 1, "whole": 0} if "search" in action else {}
        return view.changed(fresh | action), invalid_number(view, action)
    mapping = snapshot.mapping_of(view, item)
    for role, path in roles.items():
        mapping = with_role(mapping, role, path)
    return view.changed({"columns": write_mapping(mapping), "kind": snapshot.kind_shown(view, item)}), ""


def _again(view: View, item: Dataset) -> None:
    """Starts what the tab shows again: a search, or tokenizing."""
    if view.tab == "rows":
        snapshot.search(item, view, again=True)
    else:
        snapshot.retry(item, replace(view, model=_readable(view.model)))


def invalid_number(view: View, action: dict[str, Any]) -> Markup | str:
    """Why a typed number is invalid; empty if none is."""
    if not view.takes("row", action.get("row", 1)):
        return parts_html.alert_html(
            f"Row: {action['row']!r}", "is not a whole number from 1 up.", "The previous row is kept."
        )
    for name, value in action.items():
        known = settings().get(name)
        if known and known.kind in ("integer", "number") and not view.takes(name, value):
            kind = "a whole number" if known.kind == "integer" else "a number"
            return parts_html.alert_html(
                f"{known.label}: {value!r}", f"is not {kind} {known.bounds}.", "The previous value is kept."
            )
    return ""


def _view(before: Shown | None, request: gr.Request) -> View:
    return before.view if before else View.of(request.query_params)


def _send(now: Shown, before: Shown | None) -> tuple[Shown, list[Any]]:
    """What the page shows now, and the outputs that changed."""
    parts = viewers.changes(now.parts, before.parts if before else None)
    return now, [*parts, viewers.pace(now.seconds, before.seconds if before else None)]


def _message_only(view: View, message: Markup) -> Shown:
    return Shown(view, (str(message), *[""] * (len(_NAMES) - 1)))


def _complete(view: View, subject: Subject) -> View:
    """The view with an existing row, and a model: by default the last one trained on this data set."""
    row = min(view.row, max(subject.item.rows, 1))
    return replace(view, row=row, model=_readable(view.model or snapshot.usual_model(subject)))


def _readable(model: str) -> str:
    """The model, or the starter model if the caller may not read it."""
    return snapshot.STARTER if callers.current().reach.model(model) else model


def _save_mapping(view: View, *, keep: bool) -> tuple[View, Markup]:
    """Saves the mapping of the data set, or removes it if `keep` is false; an invalid mapping is explained and not saved."""
    item = snapshot.subject(view.id).item
    line = write_mapping(snapshot.mapping_of(view, item)) if keep else None
    try:
        changes.save_mapping(view.id, line)
    except Forbidden as error:
        return view, parts_html.alert_html("Could not save the mapping.", str(error))
    except DataError as error:
        return view, parts_html.alert_html("Could not save the mapping.", issues.problems_html(error))
    finally:
        snapshot.forget()
    message = "Mapping saved. Runs and token counts use it." if keep else "Mapping removed."
    return replace(view, columns="", kind=""), parts_html.done_html(message)
