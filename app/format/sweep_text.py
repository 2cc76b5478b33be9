"""Sweeps as text, for pages and commands, from their documents. Pure."""

from typing import Any

from app.format import numbers
from app.texts import _, gettext_noop, ngettext
from training.units import NONE, byte_size
from worker.choices import SearchMethod
from worker.store.tables import Status
from worker.sweeps.expand import words as values_in_words

METHODS = {
    SearchMethod.GRID: gettext_noop("grid"),
    SearchMethod.RANDOM: gettext_noop("random search"),
    SearchMethod.HALVING: gettext_noop("successive halving"),
}

_METRICS = {"loss": gettext_noop("training loss"), "eval_loss": gettext_noop("evaluation loss")}


def metric(name: str) -> str:
    """The metric of a sweep in words; one that has no words by its name."""
    return _(_METRICS[name]) if name in _METRICS else name


def plan_words(plan: dict[str, Any]) -> str:
    """A plan in a line: "12 runs, about 3 h, 2 do not fit"."""
    parts = [numbers.plural(plan["total"], "run", "runs")]
    seconds = plan["seconds"]
    parts.append(_("time unknown") if seconds is None else _("about {time}").format(time=numbers.coarse(seconds)))
    if unfit := plan["unfit"]:
        parts.append(ngettext("{count} does not fit", "{count} do not fit", unfit).format(count=numbers.count(unfit)))
    if refused := plan["refused"]:
        parts.append(
            ngettext("{count} cannot start", "{count} cannot start", refused).format(count=numbers.count(refused))
        )
    return ", ".join(parts)


def lost(sweep: dict[str, Any]) -> str:
    """What deleting a sweep loses."""
    runs = [run for trial in sweep["trials"] for run in trial["runs"]]
    finished = sum(run["status"] == "finished" for run in runs)
    count = numbers.plural(len(runs), "run", "runs")
    if not finished:
        return _("This deletes its {runs}: settings, metrics, logs and checkpoints are lost.").format(runs=count)
    results = numbers.plural(finished, "finished run", "finished runs")
    return _(
        "This deletes its {runs}: settings, metrics, logs and checkpoints are lost, and the results of {finished}."
    ).format(runs=count, finished=results)


def stopping(sweep: dict[str, Any]) -> str:
    """What stopping a sweep does."""
    runs = [run for trial in sweep["trials"] for run in trial["runs"] if not Status(run["status"]).ended]
    count = numbers.plural(len(runs), "run", "runs")
    return _("{runs} will stop. Running ones save a checkpoint first; Resume continues a run later.").format(runs=count)


def state(sweep: dict[str, Any]) -> str:
    """Whether a sweep is queued, running, stopping, stopped or finished."""
    if sweep["stopped_at"]:
        return "stopped" if sweep["ended"] else "stopping"
    return "finished" if sweep["ended"] else "running" if "running" in sweep["statuses"] else "queued"


def share_done(sweep: dict[str, Any]) -> float:
    """The share of the runs' steps that are done, 0 to 1; an ended run counts as whole."""
    runs = [run for trial in sweep["trials"] for run in trial["runs"]]
    shares = [1.0 if Status(run["status"]).ended else _share(run["step"], run["total_steps"]) for run in runs]
    return sum(shares) / len(shares) if shares else 0.0


def _share(step: int, total: int | None) -> float:
    return min(step / total, 1.0) if total else 0.0


def run_state(run: dict[str, Any], *, several: bool) -> str:
    """The state of a run of a trial: "running, step 4 of 40"; with its seed and value if the trial has several runs."""
    state, step = str(run["state"]), numbers.count(run["step"])
    word = _(state)
    if state in ("paused", "stopped early"):
        word = _("{state} at step {step}").format(state=word, step=step)
    elif state == "running" and run["total_steps"]:
        word = _("running, step {step} of {total}").format(step=step, total=numbers.count(run["total_steps"]))
    if not several:
        return word
    value = f" {numbers.decimal(run['value'])}" if run["value"] is not None else ""
    return _("seed {seed}: {state}").format(seed=run["seed"], state=f"{word}{value}")


def plan_notes(plan: dict[str, Any]) -> list[str]:
    """What to know about a plan: how many start, why the time is unknown, what the time assumes."""
    notes = []
    if plan["starting"] < plan["total"]:
        starting = numbers.plural(plan["starting"], "run", "runs")
        notes.append(_("{runs} will start; the others are left out.").format(runs=starting))
    if plan["seconds"] is None:
        notes.append(
            _("The time is unknown until a run with this model and method has trained, and its data is counted.")
        )
    elif plan["starting"]:
        devices = numbers.plural(plan["devices"], "device", "devices")
        notes.append(_("The time is for {devices}, at the speed of earlier runs.").format(devices=devices))
    if plan["method"] == "halving" and plan["steps"]:
        whole = sum(run["steps"] or 0 for run in plan["runs"] if run["starts"])
        notes.append(_halving(plan["steps"], whole))
    return notes


def _halving(steps: int, whole: int) -> str:
    if steps >= whole:
        return _("Successive halving stops no run early: the first rung is at the last step. Lower min_steps.")
    of = numbers.plural(whole, "step", "steps")
    return _("Successive halving trains about {count} of {steps}.").format(count=numbers.count(steps), steps=of)


def verdict(run: dict[str, Any]) -> str:
    """Whether a planned run starts, in a word or two."""
    if run["problems"]:
        return _("cannot start")
    if run["fits"] is False:
        return _("does not fit") if not run["starts"] else _("starts; does not fit")
    return _("fits") if run["fits"] else _("starts")


def run_values(run: dict[str, Any]) -> str:
    """The values of a planned run, with its seed where there are several."""
    return values_in_words(run["changes"], run["seed"])


def memory(run: dict[str, Any]) -> str:
    """The forecast memory of a planned run."""
    return byte_size(run["peak_bytes"]) if run["peak_bytes"] else NONE


def trial_words(trial: dict[str, Any]) -> str:
    """The values of a configuration: "lr=0.0001 r=8"."""
    return values_in_words(trial["changes"])


def value_words(summary: dict[str, Any] | None) -> str:
    """A mean with its interval: "0.1234 (0.1200 to 0.1268, n = 3)"; without seeds the value."""
    if summary is None:
        return NONE
    mean = numbers.decimal(summary["mean"])
    if summary["low"] is None:
        return mean
    low, high = numbers.decimal(summary["low"]), numbers.decimal(summary["high"])
    return _("{mean} ({low} to {high}, n = {n})").format(mean=mean, low=low, high=high, n=summary["n"])


def progress(sweep: dict[str, Any]) -> str:
    """The runs by status: "3 finished, 1 running, 8 queued"."""
    return ", ".join(f"{count:,} {_(status)}" for status, count in sweep["statuses"].items()) or _("no runs")


def saved(sweep: dict[str, Any]) -> str:
    """What early stopping saved: "4 runs stopped early, 1,840 of 3,200 steps saved"; empty if nothing."""
    steps = sweep["saved"]
    if not steps["runs"]:
        return ""
    runs, saved, of = (
        numbers.plural(steps["runs"], "run", "runs"),
        numbers.count(steps["steps"]),
        numbers.count(steps["of"]),
    )
    return _("{runs} stopped early, {count} of {of} steps saved").format(runs=runs, count=saved, of=of)


def best(sweep: dict[str, Any]) -> str:
    """The best configuration: "lr=0.01 r=8: evaluation loss 1.2345", with its step until it has finished; empty before a result."""
    first = sweep["best"]
    if first is None:
        return ""
    found = f"{trial_words(first)}: {metric(sweep['metric'])} {value_words(first['summary'])}"
    return (
        found
        if first["finished"]
        else _("{best} at step {step}").format(best=found, step=numbers.count(first["at_step"]))
    )


def lead(sweep: dict[str, Any]) -> str:
    """Whether the best is better than the second beyond the spread of the seeds; empty before both have finished."""
    found = sweep["lead"]
    if found is None:
        return ""
    if found["n"] < 2:
        return _("One seed per configuration: the spread between seeds is unknown.")
    if found["includes_zero"]:
        sentence = _(
            "No difference shown to the second: the 95% interval of the difference, {low} to {high} over {n} seeds, includes 0."
        )
    else:
        sentence = _("Better than the second: the 95% interval of the difference over {n} seeds is {low} to {high}.")
    return sentence.format(low=numbers.decimal(found["low"]), high=numbers.decimal(found["high"]), n=found["n"])
