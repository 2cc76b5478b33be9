"""Below the method on New run: its own options, and the parameters that it trains in the chosen model."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr
from markupsafe import Markup, escape

from app.access import callers
from app.format import numbers
from app.format.setting_text import label, value_in_words
from app.pages.common import form
from app.pages.common.cache import TimedCache
from app.pages.common.form import local_model
from app.pages.common.html import HTML, UNQUEUED, bar, each, html, looking_html, note_html, table
from app.texts import _, gettext_noop
from app.web.gradio_texts import made
from training.config.applies import Values
from training.config.choices import Group
from training.config.fields import ConfigError, settings
from training.config.peft_methods import Option, method
from training.config.run_config import RunConfig
from worker.forecasts import shapes

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


def wire(panel: MethodPanel, chosen: Any, inputs: list[Any], names: tuple[str, ...]) -> None:
    """Connects the options to the chosen method, and the button to all settings."""

    def targets(*typed: Any) -> Markup:
        return targets_html(dict(zip(names, typed, strict=True)))

    chosen.change(lambda name: [options_html(str(name)), ""], chosen, [panel.options, panel.targets], **UNQUEUED)
    loading = panel.show_targets.click(_loading, None, panel.targets, **UNQUEUED)
    loading.then(targets, inputs, panel.targets, **UNQUEUED)


def _loading() -> Markup:
    sentence = _("Building the model without its weights: about 10 s, once for these settings.")
    return looking_html(Markup("{} {}").format(sentence, bar(None, label=_("Building the model"))))


def options_html(name: str) -> Markup:
    """The options that `method_options` accepts for the method, folded away."""
    known = method(name)
    if known is None or not known.options:
        return Markup("")
    rows = each(
        "<tr><th><code>{}</code></th><td>{}</td><td>{}</td><td><code>{}</code></td></tr>",
        [(key, _(option.help), option.taken(_), _default(option)) for key, option in known.options.items()],
    )
    heads = [_("Option"), _("Description"), _("Type"), _("Default")]
    return Markup('<details class="options"><summary>{}</summary>{}</details>').format(
        _("{method} options").format(method=value_in_words("method", name)), table("options", heads, rows)
    )


def targets_html(values: Values) -> Markup:
    """The parameters that the form's method trains in its model, or the problem that prevents an answer."""
    config = form.check({**values, "data": values.get("data") or "none"})
    if isinstance(config, list):
        return _problem(label(config[0].field), config[0].message, config[0].fix)
    try:
        answer = _answers.get(_key(config), lambda: shapes.list_targets(callers.settled(config)))
    except ConfigError as error:  # is not cached, since it may be gone at the next try
        return _problem(label(error.problem.field), error.message, error.fix)
    share = numbers.percent(answer["trainable"] / answer["total"], 4)
    trainable = Markup("<b>{}</b>").format(f"{answer['trainable']:,}")
    lead = escape(_("{count} of {total} parameters are trainable ({share}).")).format(
        count=trainable, total=f"{answer['total']:,}", share=share
    )
    return note_html(lead) + Markup("").join(
        _group(heading, answer[part]) for part, heading in _PARTS.items() if answer[part]
    )


def _key(config: RunConfig) -> str:
    """The settings that decide the answer, and when a local model's description was written."""
    described = Path(local_model(config.model)) / "config.json"
    written = described.stat().st_mtime_ns if described.is_file() else 0
    return f"{config.model_dump_json(include=_DECIDING)} {written}"


def _group(heading: str, groups: list[dict[str, Any]]) -> Markup:
    rows = each(
        "<tr><td><code>{}</code></td><td>x {}</td><td>{}</td></tr>",
        [(group["pattern"], f"{group['count']:,}", group["shape"]) for group in groups],
    )
    return table("figures", each("<th>{}</th>", [(_(heading),), ("",), (_("in → out"),)]), rows)


def _problem(label: str, message: str, fix: str) -> Markup:
    return Markup('<p class="alert" role="alert"><b>{}</b> {} <em>{}</em></p>').format(label, message, fix)


def _default(option: Option) -> str:
    return _("empty") if option.default is None else str(option.default)
