"""What a page's components hold when it opens: the answers of its own load handlers, called for this request."""

import json
from collections.abc import Mapping
from copy import copy
from typing import Any
from urllib.parse import unquote

import gradio as gr
from gradio.helpers import special_args
from starlette.requests import Request

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
