"""The page of one data set, at /dataset?id=ID&tab=...: what the address asks for is shown, and what is chosen goes into it."""

import random
from dataclasses import dataclass, replace
from typing import Any

import gradio as gr
from markupsafe import Markup

from app import callers, changes
from app.callers import Forbidden
from app.pages import dataset_data, dataset_parts, dataset_tabs
from app.pages.dataset_columns import with_role
from app.pages.dataset_data import Subject
from app.pages.dataset_view import View
from app.pages.parts import QUIET, database_away, html
from app.pages.viewers import Viewers
from training.failure import DataError
from training.fields import settings
from training.mapping import write_mapping
from worker.datasets import DatasetNotFound
from worker.patience import UNREACHABLE

COUNTING_SECONDS, QUIET_SECONDS = 1.5, 10.0
_SCRIPT = "lathe.view(element, trigger, watch)"
_NAMES = ("set-head", "set-tabs", "set-tools", "set-body")


@dataclass(frozen=True)
class Shown:
    """What a page shows: the view, its parts as HTML, how often it asks for news, and what was said to the last request."""

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
    seen = [*parts, timer]
    demo.load(opened, None, seen, **QUIET)
    timer.tick(ticked, None, seen, **QUIET)
    for part in parts:
        part.select(chosen, None, seen, **QUIET)


def opened(request: gr.Request) -> list[Any]:
    """The page as its address asks for it."""
    return _viewers.serve(request.session_hash, lambda _: _send(show(View.of(request.query_params)), None))


def ticked(request: gr.Request) -> list[Any]:
    """What is new; all of it where the server was started again since the page was opened."""
    return _viewers.serve(
        request.session_hash,
        lambda before: _send(show(_view(before, request), before.notice if before else ""), before),
    )


def chosen(event: gr.EventData, request: gr.Request) -> list[Any]:
    """Another view, or something to do: the mapping saved or forgotten, the tokens counted once more."""
    asked: dict[str, Any] = event._data if isinstance(event._data, dict) else {}

    def answer(before: Shown | None) -> tuple[Shown | None, list[Any]]:
        view = _view(before, request)
        try:
            view, told = act(view, asked)
            return _send(show(view, told), before)
        except (DatasetNotFound, *UNREACHABLE):
            return _send(show(view), before)  # which says so

    return _viewers.serve(request.session_hash, answer)


def show(view: View, notice: Markup | str = "") -> Shown:
    """The page for a view; `notice` is what came of the last request, such as why a number was not taken."""
    try:
        found = dataset_data.subject(view.id)
        view = _complete(view, found)
        body, counting = dataset_tabs.body(view, found.item)
    except DatasetNotFound as error:
        return _alone(view, dataset_parts.missing_html(str(error) if view.id else "The address names no data set."))
    except UNREACHABLE:
        return _alone(view, database_away())
    users = [(user.id, user.name) for user in found.users]
    head = dataset_parts.heading(found.item, users, view) + dataset_parts.facts_html(found.item)
    tools = dataset_parts.tools_html(view, dataset_data.models()) + notice
    parts = (head, dataset_parts.tabs_html(view), tools, body)
    return Shown(view, tuple(map(str, parts)), COUNTING_SECONDS if counting else QUIET_SECONDS, notice)


def act(view: View, asked: dict[str, Any]) -> tuple[View, Markup | str]:
    """Does what was asked for; the view to show then, and what came of it."""
    item = dataset_data.subject(view.id).item
    if "save" in asked or "forget" in asked:
        return _saved(view, keep="save" in asked)
    if "again" in asked:
        dataset_data.again(item, replace(view, model=_readable(view.model)))
    if "random" in asked:
        return replace(view, row=random.randint(1, max(item.rows, 1))), ""  # noqa: S311 nothing is kept secret by it
    roles = {name.removeprefix("role."): str(path) for name, path in asked.items() if name.startswith("role.")}
    if not roles:
        return view.changed(asked), refused(view, asked)
    mapping = dataset_data.mapping_of(view, item)
    for role, path in roles.items():
        mapping = with_role(mapping, role, path)
    return view.changed({"columns": write_mapping(mapping), "kind": dataset_data.kind_shown(view, item)}), ""


def refused(view: View, asked: dict[str, Any]) -> Markup | str:
    """What is wrong with a number that was typed and not taken."""
    for name, value in asked.items():
        known = settings().get(name)
        if known and known.kind in ("integer", "number") and not view.takes(name, value):
            what = "a whole number" if known.kind == "integer" else "a number"
            return dataset_parts.trouble_html(
                f"{known.label}: {value!r}", f"is not {what} {known.bounds}.", "The number before it stands."
            )
    return ""


def _view(before: Shown | None, request: gr.Request) -> View:
    return before.view if before else View.of(request.query_params)


def _send(now: Shown, before: Shown | None) -> tuple[Shown, list[Any]]:
    """What is shown now, and what of it is to be sent."""
    old = before.parts if before else (None,) * len(now.parts)
    parts = [gr.skip() if part == was else part for part, was in zip(now.parts, old, strict=True)]
    pace = gr.skip() if before and before.seconds == now.seconds else gr.Timer(now.seconds)
    return now, [*parts, pace]


def _alone(view: View, told: Markup) -> Shown:
    """One message in the place of the page."""
    return Shown(view, (str(told), *[""] * (len(_NAMES) - 1)))


def _complete(view: View, found: Subject) -> View:
    """The view with a row that is there, and a model to count tokens for: the last that was trained on this set."""
    row = min(view.row, max(found.item.rows, 1))
    return replace(view, row=row, model=_readable(view.model or dataset_data.usual_model(found)))


def _readable(model: str) -> str:
    """The model, or the starter's in its place where the caller may not read it."""
    return dataset_data.STARTER if callers.current().reach.model(model) else model


def _saved(view: View, *, keep: bool) -> tuple[View, Markup]:
    """The mapping stored with the set, or taken off it; one that cannot train is explained and not stored."""
    item = dataset_data.subject(view.id).item
    line = write_mapping(dataset_data.mapping_of(view, item)) if keep else None
    try:
        changes.save_mapping(view.id, line)
    except Forbidden as error:
        return view, dataset_parts.trouble_html("The mapping is not saved.", str(error))
    except DataError as error:
        return view, dataset_parts.trouble_html("The mapping is not saved.", dataset_parts.problems_html(error))
    finally:
        dataset_data.forget()
    told = (
        "The mapping is saved: the tokens are counted by it, and runs use it." if keep else "The mapping is forgotten."
    )
    return replace(view, columns="", kind=""), dataset_parts.done_html(told)
