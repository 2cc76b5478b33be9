"""What a form amounts to, worked out anew at every change: problems, conflicts, and the three previews. No components."""

import json
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from app import form, text
from app.cache import TimedCache
from app.pages.parts import each, facts
from training import rules
from training.config import Precision, RunConfig
from training.config_file import to_yaml
from training.deepspeed_own import given
from training.fields import Problem, settings
from training.fsdp import fsdp_config
from training.model_files import ModelError, ModelFacts, describe_model
from training.rules import Conflict, Machine
from training.zero import deepspeed_config
from worker import launcher, submit

NO_ZERO = "// DeepSpeed runs with the strategies zero0 to zero3."
_STAND_INS = {"model": "MODEL", "data": "DATA"}

_machines: TimedCache[None, Machine] = TimedCache(seconds=30)
_models: TimedCache[str, ModelFacts | Problem] = TimedCache(seconds=10)


@dataclass(frozen=True)
class Review:
    """A form, checked. `config` is None while something is wrong; the previews are None where they cannot be made."""

    config: RunConfig | None
    problems: list[Problem] = field(default_factory=list)
    conflicts: list[Conflict] = field(default_factory=list)
    model: ModelFacts | None = None
    command: str | None = None
    deepspeed: str | None = None
    yaml: str | None = None
    global_batch: int | None = None

    @property
    def ready(self) -> bool:
        """Whether Start may be pressed."""
        return self.config is not None and not self.problems and not any(conflict.blocking for conflict in self.conflicts)


def review(values: form.Values) -> Review:
    """Checks the form and makes its previews; a model or data set not chosen yet stands in the previews as MODEL or DATA."""
    checked = form.check(values)
    problems = checked if isinstance(checked, list) else []
    known = form.check({**values, **{name: values.get(name) or stand_in for name, stand_in in _STAND_INS.items()}})
    if isinstance(known, list):
        return Review(None, problems)
    facts = _facts(str(values.get("model") or ""))  # which the caller may read: form.check has seen to it
    if isinstance(facts, Problem):
        problems, facts = [*problems, facts], None
    here = machine()
    return Review(
        config=None if isinstance(checked, list) else checked,
        problems=problems,
        conflicts=rules.check(known, here),
        model=facts,
        command=launcher.preview(known, on_cpu=here.kind == "cpu"),
        deepspeed=_deepspeed(known, facts, here),
        yaml=to_yaml(known),
        global_batch=known.global_batch_size,
    )


def machine() -> Machine:
    """What this machine trains on; asked for again after half a minute."""
    return _machines.get(None, submit.machine)


def processes_here() -> int:
    """How many processes to propose for a strategy that spreads over several: one a GPU, two where that is not known."""
    here = machine()
    return here.devices if here.kind == "cuda" and here.names else 2


def machine_words(here: Machine) -> str:
    """The machine in a line: "2 x NVIDIA A100, 80.0 GiB each", or that it has no GPU."""
    if here == submit.ANY_MACHINE:
        return "whichever worker is free"
    if here.kind == "cpu":
        return "no GPU: runs train on the CPU"
    name = here.names[0] if len(set(here.names)) == 1 else "GPU"
    memory = f", {text.byte_size(min(here.memory_bytes))} each" if here.memory_bytes else ""
    return f"{here.devices} x {name}{memory}"


def summary_html(found: Review) -> Markup:
    """What the settings come to, in a few numbers."""
    values = [("Global batch", _batch(found)), ("Trains on", machine_words(machine()))]
    if found.model and found.model.is_local:
        size = f", {text.count(found.model.parameters)} parameters" if found.model.parameters else ""
        values.insert(0, ("Model", f"{found.model.architecture}{size}"))
    return facts(values)


def problems_html(found: Review, refused: list[Problem] | None = None) -> Markup:
    """Everything that keeps the run from starting, and what should be thought about, each with its fix."""
    problems = [*found.problems, *(one for one in refused or [] if one not in found.problems)]
    items = [_problem(problem) for problem in problems] + [_conflict(conflict) for conflict in found.conflicts]
    if not items:
        return Markup('<p class="ready">Ready to start.</p>')
    lead = _lead(found, problems)
    return Markup('{}<ul class="problems">{}</ul>').format(lead, Markup("").join(items))


def _lead(found: Review, problems: list[Problem]) -> Markup:
    missing = [form.label(problem.field) for problem in problems if _is_missing(problem)]
    others = len(problems) - len(missing) + sum(conflict.blocking for conflict in found.conflicts)
    told = [f"Start needs: {', '.join(missing).lower()}."] if missing else []
    told += [f"{text.plural(others, 'thing')} to put right."] if others else []
    return Markup('<p class="lead">{}</p>').format(" ".join(told) or "Ready to start; please note:")


def _problem(problem: Problem) -> Markup:
    given = "" if problem.value in (None, "") else Markup(" <code>{}</code>").format(str(problem.value)[:200])
    goto = Markup('<button type="button" class="link" data-goto="{}">{}</button>').format(problem.field, form.label(problem.field))
    if _is_missing(problem):
        return Markup('<li class="missing">{} is missing. <em>{}</em></li>').format(goto, problem.fix)
    return Markup('<li class="blocking" data-field="{}">{}{} {} <em>{}</em></li>').format(
        problem.field, goto, given, problem.message, problem.fix
    )


def _is_missing(problem: Problem) -> bool:
    return problem.value in (None, "") and problem.message == "is missing."


def _conflict(conflict: Conflict) -> Markup:
    known = {name: value for name, value in conflict.changes.items() if name in settings()}
    button = Markup("")
    if known:
        words = ", ".join(f"{form.label(name)} to {form.shown(settings()[name], value)}" for name, value in known.items())
        send = json.dumps({"changes": known}, default=str)
        button = Markup('<button type="button" class="fix" data-send="{}">Set {}</button>').format(send, words)
    fields = each('<span data-field="{}" hidden></span>', [(name,) for name in conflict.settings if conflict.blocking])
    kind = "blocking" if conflict.blocking else "advice"
    return Markup('<li class="{}">{}{} <em>{}</em>{}</li>').format(kind, fields, conflict.reason, conflict.fix, button)


def _batch(found: Review) -> str:
    if found.global_batch is None:
        return text.NONE
    return f"{text.plural(found.global_batch, 'row')} a step"


def _facts(model: str) -> ModelFacts | Problem | None:
    return _models.get(model, lambda: _describe(model)) if model else None


def _describe(model: str) -> ModelFacts | Problem:
    try:
        return describe_model(model)
    except ModelError as error:
        return Problem("model", error.value, error.message, error.fix)


def _deepspeed(config: RunConfig, facts: ModelFacts | None, here: Machine) -> str:
    precision = here.best_precision if config.precision is Precision.AUTO else config.precision
    if config.deepspeed_config and given(config) is None:
        return "// The file is read, and checked key by key, when the run is made."
    resolved: dict[str, Any] | None = deepspeed_config(config, facts.hidden_size if facts else None, precision)
    if sharded := fsdp_config(config):
        return f"// What transformers takes as fsdp_config.\n{json.dumps(sharded, indent=2)}"
    return NO_ZERO if resolved is None else json.dumps(resolved, indent=2)
