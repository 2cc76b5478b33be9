"""The page New sweep, at /new-sweep: the settings that vary, the method, and the plan before the start.

Its configuration is that of /new-sweep?clone=RUN_ID, or the draft of New run, which the browser keeps.
"""

from typing import Any

import gradio as gr
from markupsafe import Markup

from app.access import callers
from app.format import sweep_text as words
from app.pages.common import diagnosis, form  # noqa: F401 what the template calls
from app.pages.common.form import Draft
from app.pages.common.html import GO, UNQUEUED, banner_html, html, problem_html, title
from app.pages.new_sweep.typed import applies, sweep_of
from app.texts import _
from app.web.gradio_texts import made
from app.web.templating import Macros
from training.config.fields import parse, settings
from training.config.yaml_file import to_yaml
from training.errors import UserError
from worker.store import database, runs
from worker.store.database import UNREACHABLE
from worker.store.tables.sweep_values import SweepSpec
from worker.sweeps import lifecycle, plan

_HTML = Macros("new_sweep.html")
_ROWS, _SHOWN = 6, 2
_METHODS = [("Grid", "grid"), ("Random", "random"), ("Successive halving", "halving")]
_NAMES = ("name", "trials", "seed", "seeds", "metric", "direction", "reduction_factor", "min_steps")
_BY_METHOD = ("trials", "seed", "reduction_factor", "min_steps")
_LABELS = {"seeds": "Seeds per configuration", "min_steps": "Steps to the first rung", "seed": "Seed of the draws"}
_HELP = {
    "trials": "Configurations to draw. Successive halving without a number trains every combination.",
    "metric": "Default: eval_loss, or loss without held-out rows.",
    "name": "Default: the settings that vary.",
    "direction": "What is better: a lower or a higher value.",
    "seeds": "Repeats each configuration, for an interval.",
    "seed": "The same seed draws the same configurations.",
    "reduction_factor": "One of so many continues at each rung.",
    "min_steps": "Steps before the first decision.",
}
_METHOD_HELP = "Grid: every combination. Random: draws. Successive halving: all runs begin, and only the best continue."
_USUAL = {"seed": "0", "seeds": "1", "reduction_factor": "3", "min_steps": "20"}
_FORMS = (
    "Values are a list (8, 16, 32), a range with a step (8 to 64 step 8) or a range to draw from (1e-5 to 1e-3 log)."
)
_EXAMPLE = "8, 16, 32 or 1e-5 to 1e-3 log"
_VARIED_FIRST = ("learning_rate", "lora_r", "lora_alpha", "micro_batch_size", "weight_decay", "warmup", "epochs")


def build(demo: gr.Blocks) -> None:
    """Components, handlers and wiring of the page."""
    draft, address, count = form.kept_in_browser(), gr.Textbox(visible=False), gr.State(_SHOWN)
    title("New sweep", Markup('<a class="button" href="/sweeps">All sweeps</a>'))
    with gr.Row(elem_classes="two-columns new-sweep"):
        with gr.Column(scale=2):
            banner = html()
            rows, varied, more = _varied()
            method, fields = _search()
            configuration = _configuration()
        with gr.Column(scale=3):
            with gr.Column(elem_classes="card start-card"):
                problems = html()
                start = gr.Button("Start", variant="primary", interactive=False, size="lg", elem_id="start-sweep")
            shown = html(made(_HTML.empty))
    by_method = [fields[name] for name in _BY_METHOD]
    typed = [configuration, method, *varied, *fields.values()]
    checked = [problems, shown, start]
    demo.load(sweep_form_opened, draft, [configuration, banner], **UNQUEUED)
    more.click(row_added, count, [count, more, *rows], **UNQUEUED)
    method.change(method_chosen, method, by_method, **UNQUEUED)
    changed: list[Any] = [component.change for component in typed]
    gr.on(changed, sweep_checking, None, problems, **UNQUEUED)
    gr.on(changed, sweep_planned, typed, checked, trigger_mode="always_last", **UNQUEUED)
    started = start.click(sweep_starting, None, [problems, start], **UNQUEUED).then(
        sweep_started, typed, [address, *checked], **UNQUEUED
    )
    started.then(None, address, None, js=GO)


def sweep_form_opened(stored: Any, request: gr.Request) -> list[Any]:
    """The configuration of the run in the address, or of the draft of New run."""
    clone = str(request.query_params.get("clone", ""))[:40]
    try:
        if not clone:
            return [_draft(stored), ""]
        with database.read() as session:
            run = runs.get(session=session, run_id=clone)
    except (UserError, *UNREACHABLE) as error:
        return [gr.skip(), problem_html(error)]
    config = run.asked.model_copy(update={"name": ""})
    return [to_yaml(config), banner_html(_("The configuration is that of {run}."), run)]


def row_added(count: int) -> list[Any]:
    """One more line for a setting that varies."""
    now = min(count + 1, _ROWS)
    return [now, gr.update(visible=now < _ROWS), *[gr.update(visible=place < now) for place in range(_ROWS)]]


def method_chosen(method: str) -> list[Any]:
    """Shows the fields of the method."""
    return [gr.update(visible=applies(name, method)) for name in _BY_METHOD]


def sweep_checking() -> Markup:
    """The note that is shown until the plan is there."""
    return _HTML.said("note", _("Checking the runs …"))


def sweep_planned(*typed: Any) -> list[Any]:
    """The plan of what is typed, or what is wrong with it."""
    if not any(str(text or "").strip() for text in typed[3 : 2 + 2 * _ROWS : 2]):
        lead = _HTML.said("lead", _("To start, choose a setting that varies."))
        return [lead, _HTML.empty(), gr.update(interactive=False)]
    try:
        found = plan.make_plan(_spec(typed), callers.current().allowed, callers.current().name)
    except UserError as error:
        return [problem_html(error), _HTML.no_plan(), gr.update(interactive=False)]
    except UNREACHABLE as error:
        return [problem_html(error), gr.skip(), gr.skip()]
    starting = bool(found.starting)
    said = ("ready", _("Ready to start.")) if starting else ("lead", _("No run can start."))
    shown = _HTML.plan(plan.as_document(found).model_dump(mode="json"), words)
    return [_HTML.said(*said), shown, gr.update(interactive=starting)]


def sweep_starting() -> list[Any]:
    """The note that is shown until the runs are queued."""
    return [_HTML.said("note", _("Queueing the runs …")), gr.update(interactive=False)]


def sweep_started(*typed: Any) -> list[Any]:
    """Queues the sweep and opens its page, or shows what is wrong."""
    try:
        caller = callers.current()
        sweep_id = lifecycle.start(_spec(typed), allowed=caller.allowed, owner=caller.name).id
    except (UserError, *UNREACHABLE) as error:
        return ["", problem_html(error), gr.skip(), gr.update(interactive=True)]
    return [f"/sweep?id={sweep_id}", gr.skip(), gr.skip(), gr.skip()]


def _spec(typed: tuple[Any, ...]) -> SweepSpec:
    """The sweep of the form's values, in the order of `typed` in `build`. Raises ConfigError if a field is wrong."""
    configuration, method, *others = typed
    lines, given = others[: 2 * _ROWS], others[2 * _ROWS :]
    varied = [(str(name or ""), str(text or "")) for name, text in zip(lines[::2], lines[1::2], strict=True)]
    return sweep_of(str(configuration or ""), str(method), varied, dict(zip(_NAMES, given, strict=True)))


def _draft(stored: Any) -> str:
    """The draft of New run as YAML; empty if it has no model and data yet."""
    values = form.changed(Draft.of(stored).values) | {"name": ""}
    try:
        return to_yaml(parse(values))
    except UserError:
        return ""


def _varied() -> tuple[list[Any], list[Any], gr.Button]:
    """The lines with settings that vary: their rows, their components in order, and the button that shows one more."""
    known = settings()
    order = [*_VARIED_FIRST, *(name for name in known if name not in _VARIED_FIRST and name != "name")]
    choices = [("", ""), *[(known[name].label, name) for name in order]]
    rows, components = [], []
    with gr.Column(elem_classes="card group"):
        html(f'<h2>Settings that vary</h2><p class="note">{_FORMS}</p>')
        for place in range(_ROWS):
            with gr.Row(elem_classes="settings varied", visible=place < _SHOWN) as row:
                name = gr.Dropdown(choices, value="", label="Setting", elem_classes="setting", elem_id=f"vary-{place}")
                values = gr.Textbox(
                    label="Values", placeholder=_EXAMPLE, elem_classes="setting", elem_id=f"values-{place}", scale=2
                )
            rows.append(row)
            components += [name, values]
        more = gr.Button("Add a setting", size="sm", elem_id="add-varied")
    return rows, components, more


def _search() -> tuple[Any, dict[str, Any]]:
    """The method, and its fields by name."""
    descriptions = {name: field.description or "" for name, field in SweepSpec.model_fields.items()}
    fields: dict[str, Any] = {}
    with gr.Column(elem_classes="card group"):
        with gr.Row(elem_classes="settings"):
            about_method: dict[str, Any] = {"elem_id": "sweep-method", "elem_classes": ["setting", "buttons", "whole"]}
            method = gr.Radio(_METHODS, value="grid", label="Method", info=_METHOD_HELP, **about_method)
        with gr.Row(elem_classes="settings"):
            for name in _NAMES:
                about: dict[str, Any] = {
                    "label": _LABELS.get(name, name.replace("_", " ").capitalize()),
                    "info": _HELP.get(name, descriptions[name]),
                    "elem_id": f"sweep-{name}",
                    "elem_classes": ["setting"],
                    "visible": applies(name, "grid"),
                }
                if name == "direction":
                    choices = [("Minimize", "minimize"), ("Maximize", "maximize")]
                    about["elem_classes"].append("buttons")
                    fields[name] = gr.Radio(choices, value="minimize", **about)
                else:
                    fields[name] = gr.Textbox(value=_USUAL.get(name, ""), **about)
    return method, fields


def _configuration() -> Any:
    with gr.Column(elem_classes="card group"), gr.Row(elem_classes="settings"):
        return gr.Textbox(
            label="Configuration of all runs",
            info="YAML, as New run shows it. From the draft of New run, or from a run.",
            lines=8,
            max_lines=24,
            elem_id="sweep-config",
            elem_classes=["setting", "whole", "paste"],
        )
