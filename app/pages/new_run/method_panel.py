"""Below the method on New run: its own options, and the parameters that it trains in the chosen model."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr
from markupsafe import Markup

from app.access import callers
from app.format.setting_text import label, value_in_words
from app.pages.common import form
from app.pages.common.cache import TimedCache
from app.pages.common.form import local_model
from app.pages.common.html import HTML, UNQUEUED, html
from app.texts import _, gettext_noop
from app.web.gradio_texts import made
from app.web.templating import PARTS, Macros
from training.config.applies import Values
from training.config.choices import Group
from training.config.fields import ConfigError, settings
from training.config.peft_methods import method_of
from training.config.run_config import RunConfig
from training.errors import Problem
from worker.forecasts import shapes

_HTML = Macros("new_run/method.html")
_PARTS = {
    "matched": gettext_noop("With an adapter"),
    "whole": gettext_noop("Fully trained"),
    "others": gettext_noop("Linear, not trained"),
}
_DECIDING = {"model", "revision", "task", *(name for name, item in settings().items() if item.group is Group.METHOD)}
_answers: TimedCache[str, shapes.Targets] = TimedCache(seconds=3600)


@dataclass(frozen=True)
class MethodPanel:
    """The components below the method's settings."""

    options: HTML
    show_targets: gr.Button
    targets: HTML


def build() -> MethodPanel:
    """The components, with the options of the default method."""
    options = html(made(lambda: options_html(form.defaults()["method"])), classes="method-options")
    show_targets = gr.Button("Show trainable parameters", size="sm", elem_id="look-targets")
    return MethodPanel(options, show_targets, html(classes="targets"))


def wire(panel: MethodPanel, chosen: Any, inputs: list[Any]) -> None:
    """Connects the options to the chosen method, and the button to all settings."""
    chosen.change(lambda name: [options_html(str(name)), ""], chosen, [panel.options, panel.targets], **UNQUEUED)
    loading = panel.show_targets.click(_loading, None, panel.targets, **UNQUEUED)
    loading.then(form.by_name(targets_html), inputs, panel.targets, **UNQUEUED)


def _loading() -> Markup:
    return _HTML.loading()


def options_html(name: str) -> Markup:
    """The options that `method_options` accepts for the method, folded away."""
    known = method_of(name)
    if known is None or not known.options:
        return Markup("")
    return _HTML.options(value_in_words("method", name), known.options)


def targets_html(values: Values) -> Markup:
    """The parameters that the form's method trains in its model, or the problem that prevents an answer."""
    config = form.check_without_data(values)
    if isinstance(config, list):
        return _problem(config[0])
    try:
        answer = _answers.get(_key(config), lambda: shapes.list_targets(callers.settled(config)))
    except ConfigError as error:  # is not cached, since it may be gone at the next try
        return _problem(error.problem)
    return _HTML.targets(answer, [(_(heading), answer[part]) for part, heading in _PARTS.items() if answer[part]])


def _key(config: RunConfig) -> str:
    """The settings that decide the answer, and when a local model's description was written."""
    described = Path(local_model(config.model)) / "config.json"
    written = described.stat().st_mtime_ns if described.is_file() else 0
    return f"{config.model_dump_json(include=_DECIDING)} {written}"


def _problem(problem: Problem) -> Markup:
    return PARTS.alert(label(problem.field), problem.message, problem.fix)
