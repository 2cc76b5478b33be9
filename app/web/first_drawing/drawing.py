"""The first drawing of each page, made for a request: the tree of its components with what they hold when it opens."""

import logging
from collections.abc import Mapping
from typing import Any

import gradio as gr
from markupsafe import Markup
from starlette.requests import Request

from app.web.first_drawing import gradio_files, parts
from app.web.first_drawing.values import Props, Values

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
