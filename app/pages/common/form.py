"""The form of a run, made from training.config.fields.settings(): a setting added to RunConfig appears without an edit here.

The form keeps what a person types: numbers are text until training.config.fields.parse checks them.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import gradio as gr
from markupsafe import Markup

from app.access import callers
from app.format.setting_text import all_in_words, in_short
from app.texts import _
from app.web.templating import PARTS, TEMPLATES
from training.config.applies import APPLIES, Values, applies
from training.config.fields import ConfigError, Setting, parse, settings
from training.config.run_config import RunConfig
from training.errors import Problem
from worker.engine_traits import ENGINES
from worker.runs.settle import FILES
from worker.settings import get_settings
from worker.store.runs import LONGEST_ID

Component = gr.components.Component
Chooser = Callable[[Setting], Component]
"""Makes the component of a setting that offers what this installation has."""
_OPTIONS = {engine.options: engine for engine in ENGINES}
_OF_MACHINES = ("num_machines", "min_machines")
MOST_BUTTONS = 7
"""Up to this many choices are shown side by side; more become a dropdown."""
_PASTED_LINES = 6  # the height of the field for a pasted JSON


@dataclass(frozen=True)
class Draft:
    """What was typed, by setting, and the id of the run that the form was cloned from."""

    values: dict[str, Any] = field(default_factory=dict)
    parent: str = ""

    @classmethod
    def of(cls, stored: Any) -> "Draft":
        """The draft that a browser stored, without what this version cannot show; defaults where there is none."""
        if not isinstance(stored, dict) or not isinstance(stored.get("values"), dict):
            return cls(defaults())
        usable = {
            name: value
            for name, value in stored["values"].items()
            if name in settings() and _fits(settings()[name], value)
        }
        return cls(defaults() | usable, str(stored.get("parent", ""))[:LONGEST_ID])

    @property
    def stored(self) -> dict[str, Any]:
        """As a browser stores it."""
        return {"values": self.values, "parent": self.parent}


def kept_in_browser(key: str = "lathe-draft") -> gr.BrowserState:
    """A draft that the browser keeps. Its `secret` need not be secret: it must only stay the same."""
    return gr.BrowserState(None, storage_key=key, secret="lathe")  # noqa: S106


def defaults() -> dict[str, Any]:
    """The form's values before anything is typed."""
    return {name: shown(setting, setting.default) for name, setting in settings().items()}


def from_config(config: Values) -> dict[str, Any]:
    """The form's values for a configuration; unknown settings are dropped, missing ones get their default."""
    return defaults() | {name: shown(settings()[name], value) for name, value in config.items() if name in settings()}


def from_query(query: Mapping[str, str]) -> dict[str, Any]:
    """The form's values in a page's address, by setting; values that the form cannot show are dropped."""
    texts = {name: str(query[name]).strip() for name in settings() if query.get(name)}
    values = {name: text == "true" if settings()[name].kind == "boolean" else text for name, text in texts.items()}
    return {name: value for name, value in values.items() if _fits(settings()[name], value)}


def shown(setting: Setting, value: Any) -> Any:
    """A value as its component takes it: booleans as they are, numbers as text, None as an empty text."""
    if setting.kind == "boolean":
        return bool(value)
    if value is None:
        return ""
    return f"{value:g}" if isinstance(value, float) else str(value)


def applying(values: Values) -> dict[str, Any]:
    """The values that have an effect with the others, as typed."""
    return {name: value for name, value in values.items() if applies(name, values)}


def visible(values: Values) -> dict[str, bool]:
    """For each setting that can be hidden, in the order of the form: True if it has an effect."""
    return {name: applies(name, values) and _is_offered(name) for name in settings() if name in APPLIES}


def _is_offered(name: str) -> bool:
    """False for settings of an engine or of several machines that this installation does not have."""
    engines = get_settings().engine_names
    has_jobs = any(ENGINES[engine].has_jobs for engine in engines)
    if name in _OF_MACHINES:
        return has_jobs or bool(get_settings().broker_url)
    return has_jobs if name == "engine" else name not in _OPTIONS or _OPTIONS[name] in engines


def changed(values: Values) -> dict[str, Any]:
    """The values that have an effect and differ from the defaults: the content of a configuration file."""
    usual = defaults()
    typed = {name: "" if value is None else value for name, value in applying(values).items()}
    return {name: value for name, value in typed.items() if value != usual[name]}


def check(values: Values) -> RunConfig | list[Problem]:
    """The configuration that the form describes, or what is wrong with it."""
    try:
        callers.check_sent(dict(values))
        config = parse(changed(values))
    except ConfigError as error:
        return error.problems
    return callers.current().allowed.problems(config) or config


def of_components(typed: Iterable[Any]) -> dict[str, Any]:
    """The form's values, by setting, of what the components of all settings send, in their order."""
    return dict(zip(settings(), typed, strict=True))


def by_name(answer: Callable[..., Any], *, before: int = 0) -> Callable[..., Any]:
    """The handler that calls `answer` with the settings by name; `before` further values, sent before them, come after."""

    def handler(*sent: Any) -> Any:
        return answer(of_components(sent[before:]), *sent[:before])

    return handler


def check_without_data(values: Values) -> RunConfig | list[Problem]:
    """As `check`, for what can be said before a data set is chosen."""
    return check({**values, "data": values.get("data") or "none"})


def fix_button(changes: Mapping[str, Any], more: Mapping[str, Any] | None = None) -> Markup:
    """A button that changes these settings in the form, and `more` that it does not name; nothing if there are none."""
    known = {name: value for name, value in changes.items() if name in settings()}
    if not known:
        return Markup("")
    sent = json.dumps({"changes": {**(more or {}), **known}}, default=str)
    return PARTS.fix(sent, _("Set {settings}").format(settings=all_in_words(known)))


TEMPLATES.globals["fix_button"] = fix_button


def build(members: Iterable[Setting], choosers: Mapping[str, Chooser]) -> dict[str, Component]:
    """The components of these settings in a grid; `choosers` make some of them, by name."""
    with gr.Row(elem_classes="settings"):
        return {setting.name: choosers.get(setting.name, component)(setting) for setting in members}


def component(setting: Setting) -> Component:
    """The component for the setting's kind, with its default."""
    shared = {"value": shown(setting, setting.default), **attributes(setting)}
    if setting.kind == "boolean":
        return gr.Checkbox(**shared)
    if setting.kind == "choice":
        choices = list(zip(setting.choice_labels, setting.choices, strict=True))
        return (gr.Radio if _side_by_side(setting) else gr.Dropdown)(choices=choices, **shared)
    lines = _PASTED_LINES if setting.name in FILES else 1  # a single line would drop pasted line breaks
    return gr.Textbox(placeholder="none" if setting.optional else None, lines=lines, **shared)


def attributes(setting: Setting) -> dict[str, Any]:
    """What the component of every setting gets: label, help, id, style classes and visibility."""
    return {
        "label": setting.label,
        "info": re.sub(r"([*\\])", r"\\\1", _explained(setting)),  # Gradio renders it as Markdown
        "elem_id": f"setting-{setting.name}",
        "elem_classes": ["setting", *_width(setting).split()],
        "visible": applies(setting.name, defaults()) and _is_offered(setting.name),
    }


def _explained(setting: Setting) -> str:
    """The line of help below a setting: on its default if it has choices; static/new-run.js explains the chosen one."""
    value = setting.default
    return setting.choice_sentences[setting.choices.index(value)] if value in setting.choices else in_short(setting)


def _side_by_side(setting: Setting) -> bool:
    return 0 < len(setting.choices) <= MOST_BUTTONS


def _width(setting: Setting) -> str:
    """The style class that sets the width of the setting's component."""
    if _side_by_side(setting):
        return f"buttons {_buttons_width(setting)}"
    if setting.kind == "choice":
        return "pick"
    return "number" if setting.kind == "integer" else setting.kind


def _buttons_width(setting: Setting) -> str:
    """The style class for the estimated width of the buttons: characters and padding."""
    pixels = sum(7 * len(label) + 22 for label in setting.choice_labels)
    return "short" if pixels < 225 else "long" if pixels < 445 else "whole"


def _fits(setting: Setting, value: Any) -> bool:
    """True if the setting's component can show the value; parse decides if the value is valid."""
    if setting.kind == "boolean":
        return isinstance(value, bool)
    return value in setting.choices if setting.kind == "choice" else isinstance(value, str)


def local_model(model: str) -> str:
    """The path of the model that the name means to the user, or the name if it is a hub id, or nothing that the user may name."""
    return str(callers.current().allowed.find_model(model) or model)
