"""What pages and commands alike say of a run, from the values of its row."""

from typing import Any

from app import text


def progress(values: dict[str, Any]) -> str:
    """How far a run is: "120 of 400 steps", or its phase before the steps are known."""
    if values["total_steps"]:
        return f"{values['step']:,} of {text.plural(values['total_steps'], 'step')}"
    return values["phase"] or text.NONE


def took(values: dict[str, Any], now: float) -> float | None:
    """Seconds from the first start to the end, or until now."""
    return (values["finished_at"] or now) - values["started_at"] if values["started_at"] else None


def eta(run: dict[str, Any]) -> float | None:
    """Seconds of training left at the present pace; None before the pace is known and after the last step."""
    if not run["seconds_per_step"] or not run["total_steps"] or run["step"] >= run["total_steps"]:
        return None
    return float(run["seconds_per_step"] * (run["total_steps"] - run["step"]))


def strategy(values: dict[str, Any]) -> str:
    """How the run really ran, as it reported: "ZeRO-2 (DeepSpeedEngine), 2 processes, bf16"."""
    ran = (values["summary"] or {}).get("strategy")
    if not ran and values["plan"]:
        plan = values["plan"]
        ran = {"stage": plan["zero_stage"], **{key: plan[key] for key in ("engine", "world_size", "precision")}}
    if not ran:
        return text.NONE
    kind = "FSDP2" if ran["engine"].startswith("FSDP") else None if ran["stage"] is None else f"ZeRO-{ran['stage']}"
    name = f"{kind} ({ran['engine']})" if kind else ran["engine"]
    processes = "1 process" if ran["world_size"] == 1 else f"{ran['world_size']} processes"
    return f"{name}, {processes}, {ran['precision']}"


def exact_match(answers: dict[str, Any] | None) -> str:
    """Held-out answers before and after: "4.0% before, 96.0% after (50 rows)"."""
    if not answers:
        return text.NONE
    return f"{_before_and_after(answers, 'exact_match')} ({text.plural(answers.get('rows', 0), 'row')})"


def scores(answers: dict[str, Any] | None) -> list[tuple[str, str]]:
    """The other scores of the held-out answers, each before and after; none where an older run has none."""
    labels = {"f1": "token F1", "rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L"}
    return [(label, _before_and_after(answers, name)) for name, label in labels.items() if answers and f"{name}_after" in answers]


def _before_and_after(answers: dict[str, Any], name: str) -> str:
    before, after = (text.percent(answers.get(f"{name}_{moment}")) for moment in ("before", "after"))
    return f"{before} before, {after} after"
