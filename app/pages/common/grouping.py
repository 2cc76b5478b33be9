"""What runs are grouped by on the pages Runs and Compare: the values of `group` in their addresses."""

from collections.abc import Iterable

from app.texts import gettext_noop
from training.config.fields import settings
from worker.store.run_list import GROUPS

GROUPINGS = {
    "": gettext_noop("None"),
    "model": gettext_noop("Model"),
    "data": gettext_noop("Data set"),
    "method": gettext_noop("Method"),
    "sweep": gettext_noop("Sweep"),
    "tag": gettext_noop("Tags"),
    "owner": gettext_noop("Owner"),
    "status": gettext_noop("Status"),
}


def known(group: str) -> str:
    """`group`, or the empty text if runs cannot be grouped by it."""
    return group if group in GROUPS or group in settings() else ""


def choices(differing: Iterable[str], chosen: str) -> dict[str, dict[str, str]]:
    """Values and labels to choose from, under their headings: what is of each run, and the settings in which they differ."""
    offered = {*differing, chosen} - {*GROUPS}
    return {
        "": GROUPINGS,
        gettext_noop("Settings that differ"): {name: one.label for name, one in settings().items() if name in offered},
    }
