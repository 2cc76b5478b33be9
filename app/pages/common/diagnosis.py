"""What templates need that show settings, as that of a diagnosis (app/pages/templates/diagnosis.html) does."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from app.format import numbers
from app.format.setting_text import all_in_words, label, value_in_words
from app.pages.common import form
from app.web.templating import TEMPLATES
from training.config.fields import settings
from worker.diagnosis.diagnosis import NO_FAILURE, UNKNOWN


def known_settings(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The changes of settings that this version has, as its form takes them."""
    return {name: form.shown(settings()[name], value) for name, value in changes.items() if name in settings()}


def new_run_address(values: Mapping[str, Any], run_id: str = "") -> str:
    """The address of New run with these settings, as a clone of a run if one is given."""
    clone = {"clone": run_id} if run_id else {}
    return "/new?" + urlencode(clone | {name: numbers.plain(value) for name, value in values.items()})


def setting_value(name: str, value: Any) -> str:
    """A value as pages show it; that of an unknown setting as it is."""
    return value_in_words(name, value) if name in settings() and value is not None else str(value)


def setting_cell(name: str) -> str:
    """The class of a cell with a value of a setting: numbers stand at the right."""
    return "number" if settings()[name].kind in ("integer", "number") else ""


TEMPLATES.filters["setting_label"] = label
TEMPLATES.filters["setting_head"] = lambda name: (label(name), setting_cell(name))
TEMPLATES.globals |= {
    "UNEXPLAINED": (UNKNOWN, NO_FAILURE),
    "known_settings": known_settings,
    "new_run_address": new_run_address,
    "setting_cell": setting_cell,
    "setting_value": setting_value,
    "settings_in_words": all_in_words,
}
