"""The experiment trackers of the setting `report_to`. No torch."""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from training.errors import Problem

TRACKERS = ("tensorboard", "wandb", "mlflow", "trackio")
"""Names of trackers, which are those of their packages too."""
_NAMES = ", ".join(TRACKERS)


def canonical(value: Any) -> Any:
    """The value of the setting for what a file, a flag or a form gives: names separated by commas, or None.

    Raises:
        ValueError: a name is not that of a tracker.
    """
    if not isinstance(value, (str, list, tuple)):
        return value
    given = value.split(",") if isinstance(value, str) else [str(name) for name in value]
    names = [name.strip().lower() for name in given if name.strip() and name.strip().lower() != "none"]
    if unknown := [name for name in names if name not in TRACKERS]:
        raise ValueError(f"has {unknown[0][:60]!r}, which is not one of {_NAMES}")
    return ", ".join(dict.fromkeys(names)) or None


def listed(text: str | None) -> tuple[str, ...]:
    """The trackers that the setting names."""
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


def is_installed(tracker: str) -> bool:
    """True if this Python can import the tracker."""
    spec = find_spec(tracker)
    return spec is not None and spec.origin is not None  # a folder such as ./wandb is a package without an origin


def missing(text: str | None) -> Sequence[Problem]:
    """A problem for each tracker of the setting that is not installed here."""
    return [
        Problem(
            "report_to",
            tracker,
            "is not installed.",
            f"Run `pip install {tracker}` in the worker's environment, or leave {tracker} out.",
        )
        for tracker in listed(text)
        if not is_installed(tracker)
    ]
