"""The form of a run, made from training.fields.settings(): a setting added to RunConfig appears with no edit here.

What a person typed stays as typed: numbers are text until training.fields.parse checks them.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import gradio as gr

from app import callers
from training.config import Group, Method, RunConfig, Strategy, Task
from training.fields import ConfigError, Problem, Setting, parse, settings
from training.methods import method

Values = Mapping[str, Any]
Component = gr.components.Component
MOST_BUTTONS = 8
"""Choices that are shown side by side; more become a dropdown."""
PASTED_LINES = 6
"""The height of a text that is pasted."""


def _is_lora(values: Values) -> bool:
    return values.get("method") in (Method.LORA, Method.QLORA)


def _targets(values: Values) -> bool:
    known = method(str(values.get("method")))
    return known is not None and known.targets


def _saves_modules(values: Values) -> bool:
    known = method(str(values.get("method")))
    return known.saves_modules if known else bool(values.get("trainable_layers"))


def _adapts(values: Values) -> bool:
    return values.get("method") != Method.FULL


def _trains_all(values: Values) -> bool:
    return values.get("method") == Method.FULL


def _is_zero(*stages: int) -> Callable[[Values], bool]:
    return lambda values: values.get("strategy") in [f"zero{stage}" for stage in stages]


def _is_spread(values: Values) -> bool:
    return values.get("strategy") != Strategy.SINGLE


def _answers(values: Values) -> bool:
    return str(values.get("answer_rows", "")).strip() not in ("", "0")


def _optimizer(*names: str) -> Callable[[Values], bool]:
    return lambda values: values.get("optimizer") in names


def _scheduler(*names: str) -> Callable[[Values], bool]:
    return lambda values: values.get("lr_scheduler") in names


def _adam(values: Values) -> bool:
    return values.get("optimizer") not in ("sgd", "adafactor")


def _splits(values: Values) -> bool:
    return not values.get("validation_data")


def _task(*tasks: Task) -> Callable[[Values], bool]:
    return lambda values: values.get("task") in tasks


APPLIES: dict[str, Callable[[Values], bool]] = {
    "train_on_prompt": _task(Task.SFT),
    "streaming": _task(Task.SFT),
    "max_target_length": _task(Task.SEQ2SEQ),
    "beta": _task(Task.DPO, Task.KTO, Task.ORPO),
    "dpo_loss": _task(Task.DPO),
    "desirable_weight": _task(Task.KTO),
    "undesirable_weight": _task(Task.KTO),
    "answer_rows": lambda values: Task(values.get("task") or Task.SFT).generates,
    "lora_r": _is_lora,
    "lora_alpha": _is_lora,
    "lora_dropout": _is_lora,
    "target_modules": _targets,
    "use_rslora": _is_lora,
    "use_dora": _is_lora,
    "lora_init": _is_lora,
    "loraplus_lr_ratio": _is_lora,
    "method_options": _adapts,
    "modules_to_save": _saves_modules,
    "trainable_layers": _trains_all,
    "quantization": _adapts,
    "double_quantization": _adapts,
    "num_processes": _is_spread,
    "offload_optimizer": _is_zero(1, 2, 3),
    "offload_param": lambda values: values.get("strategy") in (Strategy.ZERO3, Strategy.FSDP),
    "nvme_path": lambda values: "nvme" in (values.get("offload_param"), values.get("offload_optimizer")),
    "sequence_parallel_size": _is_zero(1, 2, 3),
    "deepspeed_config": _is_zero(0, 1, 2, 3),
    "zero_quantized_weights": _is_zero(3),
    "zero_quantized_gradients": _is_zero(3),
    "zero_hpz_partition_size": _is_zero(3),
    "zero_quantized_nontrainable_weights": _is_zero(3),
    "eval_split": _splits,
    "merge_adapter": _adapts,
    "push_private": lambda values: bool(values.get("push_to_hub")),
    "eval_steps": lambda values: values.get("eval_strategy") != "epoch",
    "save_steps": lambda values: values.get("save_strategy") != "epoch",
    "early_stopping_threshold": lambda values: bool(values.get("early_stopping_patience")),
    "adam_beta1": _adam,
    "adam_beta2": _adam,
    "adam_epsilon": lambda values: _adam(values) and not str(values.get("optimizer")).startswith("lion"),
    "momentum": _optimizer("sgd", "muon"),
    "warmup": lambda values: values.get("lr_scheduler") not in ("constant", "reduce_on_plateau"),
    "min_lr_ratio": _scheduler("wsd", "cosine_with_min_lr", "reduce_on_plateau"),
    "decay_share": _scheduler("wsd"),
    "lr_cycles": _scheduler("cosine_with_restarts"),
    "plateau_patience": _scheduler("reduce_on_plateau"),
    "plateau_factor": _scheduler("reduce_on_plateau"),
    "max_new_tokens": _answers,
}
"""When a setting has a meaning. One that is not named here always has; one that has none is neither shown nor sent."""


@dataclass(frozen=True)
class Draft:
    """A form as it stands: what was typed, by setting, and the run that it was cloned from."""

    values: dict[str, Any] = field(default_factory=dict)
    parent: str = ""

    @classmethod
    def of(cls, stored: Any) -> "Draft":
        """The draft that a browser kept; what a later or broken one holds too much is dropped."""
        if not isinstance(stored, dict) or not isinstance(stored.get("values"), dict):
            return cls(defaults())
        kept = {
            name: value
            for name, value in stored["values"].items()
            if name in settings() and _fits(settings()[name], value)
        }
        return cls(defaults() | kept, str(stored.get("parent", "")))


def defaults() -> dict[str, Any]:
    """The form's values when nothing was typed."""
    return {name: shown(one, one.default) for name, one in settings().items()}


def from_config(config: Values) -> dict[str, Any]:
    """The form's values for a configuration, such as a run's; settings it does not know keep their default."""
    return defaults() | {name: shown(settings()[name], value) for name, value in config.items() if name in settings()}


def shown(setting: Setting, value: Any) -> Any:
    """A value as the form shows it: numbers as text, nothing as an empty text."""
    if setting.kind == "boolean":
        return bool(value)
    if value is None:
        return ""
    return f"{value:g}" if isinstance(value, float) else str(value)


def given(query: Mapping[str, str]) -> dict[str, Any]:
    """The form's values that an address gives by their names; what the form could not show is left out."""
    named = {name: str(query[name]).strip() for name in settings() if query.get(name)}
    read = {name: value == "true" if settings()[name].kind == "boolean" else value for name, value in named.items()}
    return {name: value for name, value in read.items() if _fits(settings()[name], value)}


def applying(values: Values) -> dict[str, Any]:
    """The values that have a meaning with the others, as they were typed."""
    return {name: value for name, value in values.items() if name not in APPLIES or APPLIES[name](values)}


def visible(values: Values) -> dict[str, bool]:
    """Whether each setting that can be hidden is shown, in the order of the form."""
    return {name: APPLIES[name](values) for name in settings() if name in APPLIES}


def changed(values: Values) -> dict[str, Any]:
    """The values that apply and differ from the defaults: what a configuration file would say."""
    usual = defaults()
    given = {name: "" if value is None else value for name, value in applying(values).items()}
    return {name: value for name, value in given.items() if value != usual[name]}


def check(values: Values) -> RunConfig | list[Problem]:
    """The configuration that the form describes, or what is wrong with it."""
    try:
        config = parse(changed(values))
    except ConfigError as error:
        return error.problems
    return callers.current().reach.problems(config) or config


def label(name: str) -> str:
    """A setting's name for people."""
    known = settings().get(name)
    return known.label if known else name.replace("_", " ").capitalize()


def build_group(group: Group, choosers: Mapping[str, Callable[[Setting], Component]]) -> dict[str, Component]:
    """The components of a group: simple settings in a grid, advanced ones folded away.

    `choosers` make the component for settings, by name, that are picked from what this installation has.
    """
    simple = [one for one in settings().values() if one.group is group and not one.advanced]
    advanced = [one for one in settings().values() if one.group is group and one.advanced]
    made: dict[str, Component] = {}
    with gr.Row(elem_classes="settings"):
        made |= {one.name: choosers.get(one.name, component)(one) for one in simple}
    if advanced:
        names = ", ".join(one.label for one in advanced)
        with gr.Accordion(f"More: {names}", open=False, elem_classes="more"), gr.Row(elem_classes="settings"):
            made |= {one.name: choosers.get(one.name, component)(one) for one in advanced}
    return made


def component(setting: Setting) -> Component:
    """The component that a setting's kind asks for, holding its default."""
    shared = {"value": shown(setting, setting.default), **look(setting)}
    if setting.kind == "boolean":
        return gr.Checkbox(**shared)
    if setting.kind == "choice":
        return (gr.Radio if _side_by_side(setting) else gr.Dropdown)(choices=list(setting.choices), **shared)
    lines = PASTED_LINES if setting.name == "deepspeed_config" else 1  # a single line would lose the line breaks of what is pasted
    return gr.Textbox(placeholder="none" if setting.optional else None, lines=lines, **shared)


def look(setting: Setting) -> dict[str, Any]:
    """What every component of a setting is given: its label, sentence and bounds, and an id for style and scripts."""
    bounds = f" ({setting.bounds})" if setting.bounds else ""
    return {
        "label": setting.label,
        "info": re.sub(r"([*\\])", r"\\\1", f"{setting.sentence.removesuffix('.')}{bounds}."),  # it is read as Markdown
        "elem_id": f"setting-{setting.name}",
        "elem_classes": ["setting", _width(setting)],
        "visible": setting.name not in APPLIES or APPLIES[setting.name](defaults()),
    }


def _side_by_side(setting: Setting) -> bool:
    return 0 < len(setting.choices) <= MOST_BUTTONS


def _width(setting: Setting) -> str:
    """The style class that decides how much room a setting is given."""
    if setting.kind == "choice":
        return "buttons" if _side_by_side(setting) else "pick"
    return "number" if setting.kind == "integer" else setting.kind


def _fits(setting: Setting, value: Any) -> bool:
    """Whether the setting's component can show the value at all; whether it is a good one is for parse to say."""
    if setting.kind == "boolean":
        return isinstance(value, bool)
    return value in setting.choices if setting.kind == "choice" else isinstance(value, str)
