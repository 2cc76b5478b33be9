"""Beside the method on New run: its own options, and what it would train in the chosen model."""

from dataclasses import dataclass
from typing import Any

import gradio as gr
from markupsafe import Markup

from app import form, text
from app.cache import TimedCache
from app.pages.parts import QUIET, each, html, table
from training.config import Group, RunConfig
from training.fields import settings
from training.methods import Option, method
from worker import targeting

_PARTS = {"matched": "With an adapter", "whole": "Trained whole", "others": "Linear, not trained"}
_LOOKING = Markup('<p class="note looking">Looking at the model, which takes some seconds.</p>')
_ABOUT = {"model", "revision", "task", *(name for name, one in settings().items() if one.group is Group.METHOD)}
_found: TimedCache[str, targeting.Finding] = TimedCache(seconds=300)


@dataclass(frozen=True)
class MethodPanel:
    """The components below the method's settings."""

    options: gr.HTML
    look: gr.Button
    targets: gr.HTML


def build() -> MethodPanel:
    """The components, holding the default method's options."""
    options = html(options_html(form.defaults()["method"]), classes="method-options")
    look = gr.Button("What trains?", size="sm", elem_id="look-targets")
    return MethodPanel(options, look, html(classes="targets"))


def wire(panel: MethodPanel, chosen: Any, inputs: list[Any], names: tuple[str, ...]) -> None:
    """The options follow the method; the button looks at the model under all settings."""

    def looked(*typed: Any) -> Markup:
        return targets_html(dict(zip(names, typed, strict=True)))

    chosen.change(options_html, chosen, panel.options, **QUIET)
    panel.look.click(lambda: _LOOKING, None, panel.targets, **QUIET).then(looked, inputs, panel.targets, **QUIET)


def options_html(name: str) -> Markup:
    """The options that the method takes in `method_options`, folded away."""
    known = method(name)
    if known is None or not known.options:
        return Markup("")
    rows = each(
        "<tr><th><code>{}</code></th><td>{}</td><td>{}</td><td><code>{}</code></td></tr>",
        [(key, one.help, one.takes, _default(one)) for key, one in known.options.items()],
    )
    heads = each("<th>{}</th>", [("Option",), ("What it does",), ("Takes",), ("Default",)])
    return Markup('<details class="options"><summary>Options of {}</summary>{}</details>').format(
        known.name, table("options", heads, rows)
    )


def targets_html(values: form.Values) -> Markup:
    """What the form's method would train in its model, or why that cannot be said."""
    known = form.check({**values, "data": values.get("data") or "none"})
    if isinstance(known, list):
        return _problem(form.label(known[0].field), known[0].message, known[0].fix)
    found = _found.get(_key(known), lambda: targeting.look(known))
    if "problem" in found:
        problem = found["problem"]
        return _problem(form.label(problem["field"]), problem["message"], problem["fix"])
    share = text.percent(found["trainable"] / found["total"], 4)
    lead = Markup('<p class="note"><b>{}</b> of {} parameters train ({}).</p>').format(
        f"{found['trainable']:,}", f"{found['total']:,}", share
    )
    return lead + Markup("").join(_group(heading, found[part]) for part, heading in _PARTS.items() if found[part])


def _group(heading: str, groups: list[dict[str, Any]]) -> Markup:
    rows = each(
        "<tr><td><code>{}</code></td><td>x {}</td><td>{}</td></tr>",
        [(one["pattern"], f"{one['count']:,}", one["shape"]) for one in groups],
    )
    return table("figures", each("<th>{}</th>", [(heading,), ("",), ("in → out",)]), rows)


def _problem(label: str, message: str, fix: str) -> Markup:
    return Markup('<p class="alert" role="alert"><b>{}</b> {} <em>{}</em></p>').format(label, message, fix)


def _default(option: Option) -> str:
    return "empty" if option.default is None else str(option.default)


def _key(config: RunConfig) -> str:
    """The settings on which the answer hangs."""
    return config.model_dump_json(include=_ABOUT)
