"""The first drawing of each page, made for a request: the tree of its components with what they hold when it opens."""

import json
import logging
from collections.abc import Mapping
from copy import copy
from typing import Any
from urllib.parse import unquote

import gradio as gr
from gradio.helpers import special_args
from markupsafe import Markup
from starlette.requests import Request

from app.web.first_drawing import gradio_files, parts

Props = dict[str, Any]

FIRST = "first"
"""An attribute of components that a script changes when it starts: a function from the value to the properties that it sets."""
_CHANGED = "__type__"


class Values:
    """The properties of one page's components, by component id."""

    def __init__(self, blocks: gr.Blocks, config: Mapping[str, Any], page: str) -> None:
        own = config["page"][page]
        self._blocks = blocks
        self.kinds = {
            part["id"]: str(part["type"]) for part in config["components"] if part["id"] in set(own["components"])
        }
        self._props = {part["id"]: part["props"] for part in config["components"] if part["id"] in self.kinds}
        self._handlers = [part for part in config["dependencies"] if part["id"] in set(own["dependencies"])]

    def opened(self, request: Request) -> dict[int, Props]:
        """The properties after the handlers of `load`, and those that follow them, have answered this request.

        The handlers check access as they do for Gradio's call: this runs as the user of the request.
        """
        values = {number: dict(props) for number, props in self._props.items()}
        for number, kind in self.kinds.items():
            if kind == "state":
                values[number]["value"] = copy(getattr(self._blocks.blocks[number], "value", None))
            elif kind == "browserstate":
                values[number]["value"] = stored(request, values[number]["storage_key"])
        asked = gr.Request(request)  # without a session: nothing is kept of this call
        for handler in self._handlers:
            if any(event == "load" for _, event in handler["targets"]):
                self._answer(handler, values, asked)
        for number in self.kinds:
            if change := getattr(self._blocks.blocks[number], FIRST, None):
                values[number].update(change(values[number].get("value")))
        return values

    def _answer(self, handler: Mapping[str, Any], values: dict[int, Props], request: gr.Request) -> None:
        """Stores the answer of a handler, then of those that run after it."""
        function = self._blocks.fns[handler["id"]].fn
        if handler["backend_fn"] and function is not None:
            given = [values[number].get("value") for number in handler["inputs"]]
            answer = function(*special_args(function, given, request)[0])
            answers = [answer] if len(handler["outputs"]) == 1 else list(answer)
            for number, one in zip(handler["outputs"], answers, strict=True):
                values[number].update(_changes(one))
        for later in self._handlers:
            if later.get("trigger_after") == handler["id"]:
                self._answer(later, values, request)


def stored(request: Request, key: str) -> Any:
    """What the browser keeps under a storage key, as far as the page has put it into the cookie of this name."""
    try:
        return json.loads(unquote(request.cookies.get(key, "null")))
    except ValueError:
        return None


def _changes(answer: Any) -> Props:
    """The properties that an answer of a handler changes."""
    if isinstance(answer, dict) and _CHANGED in answer:
        changed = {name: value for name, value in answer.items() if name != _CHANGED}
        if "choices" in changed:
            changed["choices"] = [
                one if isinstance(one, tuple | list) else (str(one), one) for one in changed["choices"]
            ]
        return changed
    if isinstance(answer, gr.blocks.Block):  # gr.Timer(active=True): what was given to its constructor
        return dict(answer.constructor_args)
    return {"value": answer}


_LOG = logging.getLogger(__name__)


class FirstDrawings:
    """The first drawings of the pages of an application."""

    def __init__(self, blocks: gr.Blocks) -> None:
        config: Mapping[str, Any] = blocks.config
        self._pages = {
            f"/{page}": (Values(blocks, config, page), own["layout"]) for page, own in config["page"].items()
        }

        self._theme = Markup('<link rel="stylesheet" href="/theme.css?v={}">').format(config["theme_hash"])

    def links(self, path: str) -> Markup:
        """The links to the files of Gradio's that the page needs, so that the browser loads all of them at once."""
        if path not in self._pages:
            return Markup("")
        kinds = set(self._pages[path][0].kinds.values())
        sheet, module = (
            Markup('<link rel="stylesheet" href="/assets/{}">'),
            Markup('<link rel="modulepreload" href="/assets/{}">'),
        )
        sheets = Markup("").join(sheet.format(name) for name in gradio_files.needed(kinds, ".css"))
        return self._theme + sheets + Markup("").join(module.format(name) for name in gradio_files.needed(kinds, ".js"))

    def draw(self, request: Request) -> Markup:
        """The page at the request's path as HTML. Empty if a handler fails: the live page then shows what is wrong."""
        if request.url.path not in self._pages:
            return Markup("")
        values, layout = self._pages[request.url.path]
        try:
            tree = _Tree(values.kinds, values.opened(request))
            return parts.page(parts.column({}, tree.children(layout)))
        except Exception:
            _LOG.exception("The first drawing of %s failed.", request.url.path)
            return Markup("")


class _Tree:
    """A page's components as HTML."""

    def __init__(self, kinds: Mapping[int, str], props: Mapping[int, Props]) -> None:
        self._kinds, self._props = kinds, props

    def children(self, node: Mapping[str, Any]) -> Markup:
        """The children of a node, one after the other."""
        return Markup("").join(self._node(child) for child in node.get("children") or ())

    def _node(self, node: Mapping[str, Any]) -> Markup:
        kind, props = self._kinds[node["id"]], self._props[node["id"]]
        if props.get("visible") in (False, "hidden"):
            return Markup("")
        if kind in parts.DRAWN:
            return parts.DRAWN[kind](props)
        if kind == "tabs":
            return self._tabs(node, props)
        inner = self.children(node)
        if kind == "form":
            return parts.form(props, inner)
        if kind in ("row", "column"):
            return (parts.row if kind == "row" else parts.column)(props, inner)
        return Markup("")  # timers and states; a folded accordion is below the first screen

    def _tabs(self, node: Mapping[str, Any], props: Props) -> Markup:
        items = [child for child in node["children"] if self._props[child["id"]].get("visible", True)]
        labels = [str(self._props[child["id"]]["label"]) for child in items]
        return parts.tabs(props, parts.column({}, self.children(items[0])), labels)
