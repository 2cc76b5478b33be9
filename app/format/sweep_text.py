"""Sweeps as text, for pages and commands, from their documents. Pure."""

from typing import Any

from app.format import numbers
from training.units import NONE, byte_size
from worker.store.tables import Status
from worker.sweeps.expand import words as values_in_words

_NEVER_EARLY = "stops no run early: the first rung is at the last step. Lower min_steps."
METHODS = {"grid": "grid", "random": "random search", "halving": "successive halving"}


def plan_words(plan: dict[str, Any]) -> str:
    """A plan in a line: "12 runs, about 3 h, 2 do not fit"."""
    parts = [numbers.plural(plan["total"], "run")]
    seconds = plan["seconds"]
    parts.append("time unknown" if seconds is None else f"about {numbers.coarse(seconds)}")
    if plan["unfit"]:
        parts.append(f"{plan['unfit']:,} {'does' if plan['unfit'] == 1 else 'do'} not fit")
    if plan["refused"]:
        parts.append(f"{plan['refused']:,} cannot start")
    return ", ".join(parts)


def lost(sweep: dict[str, Any]) -> str:
    """What deleting a sweep loses."""
    runs = [run for trial in sweep["trials"] for run in trial["runs"]]
    finished = sum(run["status"] == "finished" for run in runs)
    results = f", and the results of {numbers.plural(finished, 'finished run')}" if finished else ""
    return f"This deletes its {numbers.plural(len(runs), 'run')}: settings, metrics, logs and checkpoints are lost{results}."


def stopping(sweep: dict[str, Any]) -> str:
    """What stopping a sweep does."""
    runs = [run for trial in sweep["trials"] for run in trial["runs"] if not Status(run["status"]).ended]
    return f"{numbers.plural(len(runs), 'run')} will stop. Running ones save a checkpoint first; Resume continues a run later."


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
    word = str(run["state"])
    if word in ("paused", "stopped early"):
        word += f" at step {run['step']:,}"
    elif word == "running" and run["total_steps"]:
        word += f", step {run['step']:,} of {run['total_steps']:,}"
    if not several:
        return word
    value = f" {numbers.decimal(run['value'])}" if run["value"] is not None else ""
    return f"seed {run['seed']}: {word}{value}"


def plan_notes(plan: dict[str, Any]) -> list[str]:
    """What to know about a plan: how many start, why the time is unknown, what the time assumes."""
    notes = []
    if plan["starting"] < plan["total"]:
        notes.append(f"{numbers.plural(plan['starting'], 'run')} will start; the others are left out.")
    if plan["seconds"] is None:
        notes.append("The time is unknown until a run with this model and method has trained, and its data is counted.")
    elif plan["starting"]:
        notes.append(f"The time is for {numbers.plural(plan['devices'], 'device')}, at the speed of earlier runs.")
    if plan["method"] == "halving" and plan["steps"]:
        whole = sum(run["steps"] or 0 for run in plan["runs"] if run["starts"])
        told = f"trains about {plan['steps']:,} of {numbers.plural(whole, 'step')}."
        notes.append(f"Successive halving {told if plan['steps'] < whole else _NEVER_EARLY}")
    return notes


def verdict(run: dict[str, Any]) -> str:
    """Whether a planned run starts, in a word or two."""
    if run["problems"]:
        return "cannot start"
    if run["fits"] is False:
        return "does not fit" if not run["starts"] else "starts; does not fit"
    return "fits" if run["fits"] else "starts"


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
    return f"{mean} ({numbers.decimal(summary['low'])} to {numbers.decimal(summary['high'])}, n = {summary['n']})"


def progress(sweep: dict[str, Any]) -> str:
    """The runs by status: "3 finished, 1 running, 8 queued"."""
    return ", ".join(f"{count:,} {status}" for status, count in sweep["statuses"].items()) or "no runs"


def saved(sweep: dict[str, Any]) -> str:
    """What early stopping saved: "4 runs stopped early, 1,840 of 3,200 steps saved"; empty if nothing."""
    steps = sweep["saved"]
    if not steps["runs"]:
        return ""
    return f"{numbers.plural(steps['runs'], 'run')} stopped early, {steps['steps']:,} of {steps['of']:,} steps saved"


def best(sweep: dict[str, Any]) -> str:
    """The best configuration: "lr=0.0001 r=8: eval_loss 1.2345", with its step until it has finished; empty before a result."""
    first = sweep["best"]
    if first is None:
        return ""
    step = "" if first["finished"] else f" at step {first['at_step']:,}"
    return f"{trial_words(first)}: {sweep['metric']} {value_words(first['summary'])}{step}"


def lead(sweep: dict[str, Any]) -> str:
    """Whether the best is better than the second beyond the spread of the seeds; empty before both have finished."""
    found = sweep["lead"]
    if found is None:
        return ""
    if found["n"] < 2:
        return "One seed per configuration: the spread between seeds is unknown."
    between = f"{numbers.decimal(found['low'])} to {numbers.decimal(found['high'])}"
    if found["includes_zero"]:
        interval = f"{between} over {found['n']} seeds"
        return f"No difference shown to the second: the 95% interval of the difference, {interval}, includes 0."
    return f"Better than the second: the 95% interval of the difference over {found['n']} seeds is {between}."
