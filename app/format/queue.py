"""The queue as text, for pages and commands, from its document. Pure."""

from typing import Any

from app.format.numbers import coarse, plural
from training.units import NONE


def starts(run: dict[str, Any], queue: dict[str, Any]) -> str:
    """When a waiting run starts: "in about 40 min", "held", "as soon as a device is free"."""
    if run["at_rung"] is not None:
        return f"paused at step {run['at_rung']:,} by its sweep"
    if run["held"]:
        return "held"
    if queue["paused_at"]:
        return "paused"
    if run["starts_in"] is None:
        return run["quota"] or NONE
    if run["starts_in"] >= 1:
        return f"in about {coarse(run['starts_in'])}"
    return "as soon as a device is free" + _evaluations(queue["evaluated"])


def _evaluations(names: list[str]) -> str:
    if not names:
        return ""
    return (
        f": an evaluation of {names[0]} uses one"
        if len(names) == 1
        else f": {plural(len(names), 'evaluation')} use some"
    )
