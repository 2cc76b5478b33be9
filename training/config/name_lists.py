"""Settings that are names separated by commas: the trackers of `report_to` and the scores of `eval_metrics`. No torch."""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from training.errors import Problem

TRACKERS = ("tensorboard", "wandb", "mlflow", "trackio")
"""Names of trackers, which are those of their packages too."""
METRICS = ("exact_match", "f1", "rouge1", "rouge2", "rougeL")
"""Scores of an answer against the expected one, from 0 to 1."""
MINOR_METRICS = ("rouge1", "rouge2")
"""Those that pages leave out."""


def listed(text: str | None) -> tuple[str, ...]:
    """The names that a setting has."""
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


def canonical_trackers(value: Any) -> Any:
    """The value of `report_to` for what a file, a flag or a form gives, or None.

    Raises:
        ValueError: a name is not that of a tracker.
    """
    if not isinstance(value, (str, list, tuple)):
        return value
    names = [name.lower() for name in _names(value) if name.lower() != "none"]
    _check(names, TRACKERS)
    return ", ".join(dict.fromkeys(names)) or None


def canonical_metrics(value: Any) -> Any:
    """The value of `eval_metrics` for what a file, a flag or a form gives.

    Raises:
        ValueError: a name is not that of a score, or there is none.
    """
    if not isinstance(value, (str, list, tuple)):
        return value
    if not (names := _names(value)):
        raise ValueError(f"needs at least one of {', '.join(METRICS)}")
    _check(names, METRICS)
    return ", ".join(dict.fromkeys(names))


def _names(value: str | Sequence[Any]) -> tuple[str, ...]:
    return listed(value if isinstance(value, str) else ",".join(map(str, value)))


def _check(names: Sequence[str], choices: Sequence[str]) -> None:
    if unknown := [name for name in names if name not in choices]:
        raise ValueError(f"has {unknown[0][:60]!r}, which is not one of {', '.join(choices)}")


def is_installed(tracker: str) -> bool:
    """True if this Python can import the tracker."""
    spec = find_spec(tracker)
    return spec is not None and spec.origin is not None  # a folder such as ./wandb is a package without an origin


def missing_trackers(text: str | None) -> Sequence[Problem]:
    """A problem for each tracker of the setting that is not installed here."""
    fix = "Run `pip install {0}` in the worker's environment, or leave {0} out."
    return [
        Problem("report_to", tracker, "is not installed.", fix.format(tracker))
        for tracker in listed(text)
        if not is_installed(tracker)
    ]
