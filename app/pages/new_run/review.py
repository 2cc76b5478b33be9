"""Checks the form after each change: problems, conflicts and three previews. No components."""

import json
from dataclasses import dataclass, field
from typing import Any

import gradio as gr
from markupsafe import Markup

from app.access import callers
from app.format import forecast_text as words
from app.format import numbers
from app.pages.common import form
from app.pages.common.cache import TimedCache
from app.pages.new_run import data_cost
from app.texts import _
from app.web.templating import PARTS
from training import rules
from training.config.applies import Values
from training.config.choices import EngineName
from training.config.data_sets import FIELDS
from training.config.machine import A_CLUSTER, Machine
from training.config.run_config import RunConfig
from training.config.sharding import deepspeed_config, fsdp_config, own_deepspeed
from training.config.yaml_file import to_yaml
from training.errors import Problem
from training.model_info.folder import ModelFacts
from training.rules.conflict import Conflict
from training.units import NONE, byte_size
from worker.engine_traits import ENGINES
from worker.forecasts import run_forecast
from worker.runs import checks
from worker.runs.settle import Settled, machine_of
from worker.settings import get_settings
from worker.store.database import UNREACHABLE
from worker.supervision import launcher

NO_ZERO = "// Choose a ZeRO stage or FSDP2 as strategy to see its configuration."
_STAND_INS = {"model": "MODEL", "data": "DATA"}
STEPS: dict[str, tuple[str, ...]] = {"data": (*FIELDS, "columns"), "model": ("model", "revision")}
"""The first two steps of the page, and the settings whose problems stand there."""

_machines: TimedCache[EngineName, Machine] = TimedCache(seconds=30)


@dataclass(frozen=True)
class Review:
    """The result of a check. `config` is None while the form has problems; a preview is None where it cannot be made."""

    config: RunConfig | None
    problems: list[Problem] = field(default_factory=list)
    conflicts: list[Conflict] = field(default_factory=list)
    model: ModelFacts | None = None
    command: str | None = None
    deepspeed: str | None = None
    yaml: str | None = None
    global_batch: int | None = None
    misfit: str = ""  # why it is not expected to fit in memory

    @property
    def ready(self) -> bool:
        """True if the run can start."""
        blocked = any(conflict.blocking for conflict in self.conflicts)
        return self.config is not None and not self.problems and not blocked


def review(values: Values) -> Review:
    """Checks the form and makes its previews, with MODEL and DATA for a model and data set not chosen yet."""
    config = form.check(values)
    problems = config if isinstance(config, list) else []
    complete = form.check({**values, **{name: values.get(name) or stand_in for name, stand_in in _STAND_INS.items()}})
    if isinstance(complete, list):
        return Review(None, [*problems, *_of_chosen(values, _without(complete, values))])
    settled, here = callers.settled(complete), machine(complete.engine)
    advice: list[Conflict] = []
    model = settled.facts if values.get("model") else None
    if isinstance(config, RunConfig):
        problems, advice = _found(settled)
    else:
        problems = [*problems, *_of_chosen(values, complete)]
    return Review(
        config=None if isinstance(config, list) else config,
        problems=problems,
        conflicts=[*rules.check(complete, here), *advice],
        model=model,
        command=launcher.preview(complete, on_cpu=here.kind == "cpu"),
        deepspeed=_deepspeed(complete, model, here),
        yaml=to_yaml(complete),
        global_batch=complete.global_batch_size,
        misfit=words.misfit(run_forecast.verdict(settled, here), settled.config)
        if isinstance(config, RunConfig)
        else "",
    )


def _without(problems: list[Problem], values: Values) -> RunConfig | None:
    """The form's run with the defaults of the settings that have problems; None if it has others."""
    usual = form.defaults()
    wrong = {problem.field: usual[problem.field] for problem in problems if problem.field in usual}
    config = form.check({**values, **{name: values.get(name) or text for name, text in _STAND_INS.items()}, **wrong})
    return config if isinstance(config, RunConfig) else None


def _of_chosen(values: Values, config: RunConfig | None) -> list[Problem]:
    """What is wrong with the data and the model that are chosen, while the form has other problems."""
    if config is None:
        return []
    chosen = [name for name in STEPS if values.get(name)]
    return [
        problem
        for problem in _found(callers.settled(config))[0]
        if any(problem.field in STEPS[name] for name in chosen)
    ]


def _found(settled: Settled) -> tuple[list[Problem], list[Conflict]]:
    """Why the run would be refused, and what of its data it would not train on."""
    try:
        return checks.problems(settled), list(data_cost.advice(settled))
    except UNREACHABLE:  # Start says so
        return list(checks.model_problems(settled)), []


def machine(engine: EngineName = EngineName.AUTO) -> Machine:
    """The GPUs of this machine, at most 30 seconds old; with an engine that has machines of its own, any of them."""
    return _machines.get(engine, lambda: machine_of(engine))


def processes_here() -> int:
    """The number of processes to propose for a distributed strategy: one per GPU, two if the GPUs are unknown."""
    here = machine()
    return here.devices if here.kind == "cuda" and here.names else 2


def machine_label(engine: EngineName) -> str:
    """The machine of an engine in a line: "2 x NVIDIA A100, 80.0 GiB each", or "CPU (no GPU found)"."""
    traits, here = ENGINES[get_settings().chosen_engine(engine)], machine(engine)
    if traits.has_jobs:
        return _("Nodes of the {engine} cluster").format(engine=traits.label)
    if here == A_CLUSTER:
        return _("Any free worker")
    if here.kind == "cpu":
        return _("CPU (no GPU found)")
    name = here.names[0] if len(set(here.names)) == 1 else "GPU"
    devices = f"{here.devices} x {name}"
    if not here.memory_bytes:
        return devices
    return _("{devices}, {memory} each").format(devices=devices, memory=byte_size(min(here.memory_bytes)))


def summary_html(checked: Review) -> Markup:
    """Model, global batch size and hardware of the form's run."""
    engine = checked.config.engine if checked.config else EngineName.AUTO
    pairs = [(_("Global batch size"), _batch(checked)), (_("Hardware"), machine_label(engine))]
    if checked.model and checked.model.is_local:
        parameters = _("{number} parameters").format(number=numbers.count(checked.model.parameters))
        known = [checked.model.architecture, *([parameters] if checked.model.parameters else [])]
        pairs.insert(0, (_("Model"), ", ".join(known)))
    devices = Markup('<span hidden data-devices="{}"></span>').format(_devices(engine))
    return PARTS.facts(pairs) + devices


def _devices(engine: EngineName) -> int:
    """The number of devices that a run can use at once: without several, the page needs no strategy."""
    here = machine(engine)
    return here.devices * here.most_machines


def _batch(checked: Review) -> str:
    if checked.global_batch is None:
        return NONE
    return _("{rows} per step").format(rows=numbers.plural(checked.global_batch, "row", "rows"))


def _deepspeed(config: RunConfig, model: ModelFacts | None, here: Machine) -> str:
    precision = here.precision_of(config.precision)
    if config.deepspeed_config and own_deepspeed(config) is None:
        return _("// Lathe reads and checks the file when you press Start.")
    resolved: dict[str, Any] | None = deepspeed_config(config, model.hidden_size if model else None, precision)
    if sharded := fsdp_config(config):
        return f"// fsdp_config of transformers\n{json.dumps(sharded, indent=2)}"
    return _(NO_ZERO) if resolved is None else json.dumps(resolved, indent=2)


READING = "# The settings are being read."  # an empty view of code has a fault of accessibility


def previews_of() -> list[gr.Code]:
    """The components, one for each tab."""
    shared: dict[str, Any] = {
        "interactive": False,
        "show_label": False,
        "wrap_lines": True,
        "show_line_numbers": False,
        "lines": 8,
    }
    with gr.Tabs(elem_classes="card previews"):
        with gr.Tab("Command"):
            command = gr.Code(READING, language="shell", buttons=["copy"], elem_id="command", **shared)
        with gr.Tab("DeepSpeed or FSDP"):
            deepspeed = gr.Code(NO_ZERO, language="json", buttons=["copy"], elem_id="deepspeed", **shared)
        with gr.Tab("YAML"):
            yaml = gr.Code(READING, language="yaml", buttons=["copy"], elem_id="yaml", **shared)
    return [command, deepspeed, yaml]
