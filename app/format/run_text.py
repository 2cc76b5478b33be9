"""Texts about a run, and about how a form of its result compares with what was trained, for pages and commands. Pure."""

from collections import Counter
from collections.abc import Collection, Mapping
from os.path import commonprefix
from typing import Any

from app.format import numbers
from app.format.numbers import coarse, plural
from app.texts import _, gettext_noop
from training.config.choices import Method
from training.config.fields import settings
from training.run_folder.evaluated import LOSS, REWARD, evaluated
from training.run_folder.model_card import quality_loss
from training.run_folder.stages import MISSING
from training.scoring.paired import Paired, in_words
from training.units import NONE, byte_size
from worker.store.tables import Request, Run, Status

_END = 12  # characters of a name that stay where space is short
_LONG_BEGINNING = 12  # characters that names share
_LONE_WORD = 7  # characters: a shorter end needs the word before it, such as "rate 0.001"
_SWEEP = " · "  # between the name of a sweep and the values of a run
_SHORT_ID = 8  # ids begin with the time
DIFFERS = gettext_noop("result differs")
"""Beside the status of a run whose result does not compute what was trained."""


def result_noun(config: Mapping[str, Any]) -> str:
    """What a run with this configuration trains: "adapter", or "model" after full fine-tuning."""
    return gettext_noop("model") if config.get("method") == Method.FULL else gettext_noop("adapter")


def status(run: Run) -> tuple[str, str]:
    """The color of a run's status, as a status, and the word: a run with a request to stop is stopping."""
    color, words = _status(run)
    return color, ", ".join(words)


def status_shown(run: Run) -> tuple[str, str]:
    """The color of a run's status, and the word in the language of the request."""
    color, words = _status(run)
    return color, ", ".join(map(_, words))


def missing(undone: Mapping[str, str]) -> list[str]:
    """What was not done after the result was saved, as words beside the status: not verified, not pushed."""
    return [MISSING[phase] for phase in undone if phase in MISSING]


def _status(run: Run) -> tuple[str, list[str]]:
    """The color, and the words."""
    if run.differs:
        return Status.FAILED.value, [run.status.value, DIFFERS, *missing(run.undone)]
    if run.undone:
        return run.status.value, [run.status.value, *missing(run.undone)]
    if run.status is Status.FINISHED and run.diverged and not run.stepped_down:
        return Status.DIVERGED.value, [gettext_noop("finished, loss not finite")]
    stopping = run.status is Status.RUNNING and run.request is Request.STOP
    return run.status.value, ["stopping" if stopping else run.status.value]


def names(runs: Collection[Run]) -> dict[str, str]:
    """The names of runs by id; a name that several have is followed by the beginning of the id."""
    counts = Counter(run.name for run in runs)
    return {run.id: run.name if counts[run.name] == 1 else f"{run.name} ({run.id[:_SHORT_ID]})" for run in runs}


def short_names(runs: Collection[Run]) -> dict[str, str]:
    """As `names`, without the words with which all begin if these are long: what differs is then seen where space is short.

    Runs of one sweep have only their values.
    """
    labels = names(runs)
    shared = commonprefix(list(labels.values()))  # noqa: RUF071 - texts, no paths
    cut = _word(shared)
    if len(labels) > 1 and _SWEEP in shared:
        return {run_id: label[shared.rindex(_SWEEP) + len(_SWEEP) :] for run_id, label in labels.items()}
    if len(labels) < 2 or cut < _LONG_BEGINNING or any(len(label) == cut for label in labels.values()):
        return labels
    if max(map(len, labels.values())) - cut < _LONE_WORD:
        cut = _word(shared[: cut - 1]) or cut
    return {run_id: f"…{label[cut:]}" for run_id, label in labels.items()}


def _word(text: str) -> int:
    """Where the last word begins."""
    return max(text.rfind(separator) for separator in " -_/") + 1


def has_rewards(run: Run) -> bool:
    """True if the run trains on rewards for its samples: its loss tells nothing, and its evaluation loss is minus the reward."""
    return evaluated(run.config.get("task"), None)[0] == REWARD


def progress(values: dict[str, Any]) -> str:
    """The progress of a run: "120 of 400 steps", or its phase before the number of steps is known."""
    if values["total_steps"]:
        steps = numbers.plural(values["total_steps"], "step", "steps")
        return _("{count} of {steps}").format(count=numbers.count(values["step"]), steps=steps)
    return values["phase"] or NONE


def name_parts(name: str) -> tuple[str, str]:
    """The beginning and the end of a name: the names of a sweep's runs differ at the end, which is shown where space is short."""
    title, dot, values = name.rpartition(_SWEEP)
    if dot:
        return title, dot + values
    if len(name) <= 2 * _END:
        return name, ""
    end = name[-_END:].partition(" ")[2] or name[-_END:]  # of whole words
    return name.removesuffix(end), end


def took(values: dict[str, Any], now: float) -> float | None:
    """The seconds of a run's attempts up to `now`, as `Run.worked`."""
    return Run(**{name: values[name] for name in ("started_at", "worked_seconds", "working_since")}).worked(now)


def eta(run: dict[str, Any]) -> float | None:
    """Seconds of training left at the current speed; None before the speed is known and after the last step."""
    if not run["seconds_per_step"] or not run["total_steps"] or run["step"] >= run["total_steps"]:
        return None
    return float(run["seconds_per_step"] * (run["total_steps"] - run["step"]))


def strategy(values: dict[str, Any]) -> str:
    """The engine that the run reported: "ZeRO-2 (DeepSpeedEngine), 2 processes, bf16"."""
    used = (values["summary"] or {}).get("strategy")
    if not used and values["plan"]:
        plan = values["plan"]
        used = {"stage": plan["zero_stage"], **{key: plan[key] for key in ("engine", "world_size", "precision")}}
    if not used:
        return NONE
    kind = "FSDP2" if used["engine"].startswith("FSDP") else None if used["stage"] is None else f"ZeRO-{used['stage']}"
    name = f"{kind} ({used['engine']})" if kind else used["engine"]
    processes = numbers.plural(used["world_size"], "process", "processes")
    return f"{name}, {processes}, {used['precision']}"


def method(config: Mapping[str, Any]) -> str:
    """The method and how the run is distributed: "LoRA", "QLoRA, ZeRO stage 2"."""
    name, strategy = settings()["method"].in_words(config.get("method")), config.get("strategy", "single")
    return _(name) if strategy == "single" else f"{_(name)}, {_(settings()['strategy'].in_words(strategy))}"


def exact_match(answers: dict[str, Any] | None) -> str:
    """Exact match of held-out answers before and after training: "4.0% before, 96.0% after (50 rows)"."""
    if not answers:
        return NONE
    rows = numbers.plural(answers.get("rows", 0), "row", "rows")
    return f"{_before_and_after(answers, 'exact_match')} ({rows})"


def scores(answers: dict[str, Any] | None) -> list[tuple[str, str, str]]:
    """The other scores of the held-out answers before and after training, as (name, label, text); older runs can lack them."""
    labels = {"f1": _("token F1"), "rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L"}
    return [
        (name, label, _before_and_after(answers, name))
        for name, label in labels.items()
        if answers and f"{name}_after" in answers
    ]


def evaluation(task: object, loss: float | None) -> str:
    """The evaluation loss, or of a task that is evaluated by its reward, "reward 0.9375"."""
    measure, value = evaluated(task, loss)
    text = numbers.decimal(value)
    return text if measure == LOSS or value is None else _("reward {value}").format(value=text)


def change(answers: dict[str, Any] | None, name: str) -> str:
    """Whether a score of the held-out answers is better after training: "better by 5.0 points (...)"; "" of older runs."""
    comparison = ((answers or {}).get("changes") or {}).get(name)
    return in_words(Paired.read(comparison)) if comparison else ""


def _before_and_after(answers: dict[str, Any], name: str) -> str:
    before, after = (numbers.percent(answers.get(f"{name}_{moment}")) for moment in ("before", "after"))
    return _("{before} before, {after} after").format(before=before, after=after)


def verdict(form: dict[str, Any]) -> str:
    """One of "equal", "differs", "lossy" (as intended) and "not checked"."""
    if "error" in form:
        return "not checked"
    if form.get("equal", form["answers_equal"]) and not (form.get("lossy") and not form["answers_equal"]):
        return "equal"
    return "lossy" if form.get("lossy") and form["prompt_ids_equal"] else "differs"


def figures(form: dict[str, Any]) -> str:
    """The verdict with its figures."""
    if "error" in form:
        error = form["error"]
        return _("not checked: {reason}").format(reason=f"{error['message']} {error['fix']}".strip())
    prompts = _("prompt tokens equal") if form["prompt_ids_equal"] else _("prompt tokens differ")
    answers = _("{count} of {rows} answers equal").format(count=form["equal_answers"], rows=form["rows"])
    lost = quality_loss(form) if form.get("lossy") else ""
    return ", ".join(filter(None, (prompts, answers, logits(form)))) + lost


def logits(form: dict[str, Any]) -> str:
    """The largest difference of the logits after a prompt; empty where the form tells none."""
    value = form.get("max_logit_difference")
    return "" if value is None else _("logits within {value}").format(value=f"{value:.2g}")


def difference(form: dict[str, Any]) -> str:
    """The first row that differs; empty if none does."""
    first = form.get("first_difference")
    if not first:
        return ""
    return _("Row {row}, {what}, token {token}: {trained!r} in training, {here!r} here.").format(**first)


def starts(run: dict[str, Any], queue: dict[str, Any]) -> str:
    """When a waiting run starts: "in about 40 min", "held", "as soon as a device is free"."""
    if run["at_rung"] is not None:
        return _("paused at step {step} by its sweep").format(step=numbers.count(run["at_rung"]))
    if run["held"]:
        return _("held")
    if queue["paused_at"]:
        return _("paused")
    if run["starts_in"] is None:
        return run["quota"] or NONE
    if run["starts_in"] >= 1:
        return _("in about {time}").format(time=coarse(run["starts_in"]))
    return _when_free(queue["evaluated"])


def _when_free(names: list[str]) -> str:
    if not names:
        return _("as soon as a device is free")
    if len(names) == 1:
        return _("as soon as a device is free: an evaluation of {name} uses one").format(name=names[0])
    evaluations = plural(len(names), "evaluation", "evaluations")
    return _("as soon as a device is free: {evaluations} use some").format(evaluations=evaluations)


def building(build: Mapping[str, Any]) -> str:
    """What the build of a form of a result is doing."""
    if build["status"] == Status.QUEUED:
        return " ".join([build["reason"], _("Waiting for a worker that has the run's files.")]).strip()
    if build["stopping"]:
        return _("Stopping.")
    phase = _(str(build["phase"]).capitalize())
    if not build["total"]:
        return f"{phase}."
    return _("{phase}, {done} of {total}.").format(
        phase=phase, done=byte_size(build["done"]), total=byte_size(build["total"])
    )
