"""What rewards gave for rows, and what went wrong with each, for pages and commands. Pure."""

from collections.abc import Mapping
from typing import Any

from app.format import numbers
from app.texts import _
from training.units import NONE


def heads(trial: Mapping[str, Any]) -> list[str]:
    """The rewards, each with its weight: "city*0.5"."""
    return [f"{one['name']}*{one['weight']:g}" if one["weight"] != 1 else one["name"] for one in trial["rewards"]]


def rows(trial: Mapping[str, Any]) -> list[list[str]]:
    """For each row its number, score by each reward, total, and answer; the last row has the means."""
    names = [one["name"] for one in trial["rewards"]]
    scored = [
        [str(row["row"]), *(_score(row["scores"][name]) for name in names), _score(row["total"]), row["answer"]]
        for row in trial["rows"]
    ]
    totals = [row["total"] for row in trial["rows"] if row["total"] is not None]
    mean = _score(sum(totals) / len(totals) if totals else None)
    return [*scored, [_("mean"), *(_score(one["mean"]) for one in trial["rewards"]), mean, ""]]


def troubles(trial: Mapping[str, Any]) -> list[str]:
    """What went wrong with each reward, and how many rows have no score for that."""
    return [f"{name}: {_failed(found['failed'])}{found['sentence']}" for name, found in trial["troubles"].items()]


def _failed(count: int) -> str:
    return _("no score for {rows}.").format(rows=numbers.plural(count, "row", "rows")) + " " if count else ""


def _score(value: float | None) -> str:
    return NONE if value is None else f"{value:.4g}"
