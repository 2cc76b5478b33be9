"""What the page of a data set shows, as its address holds it, so that a refresh and a shared link show the same."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from math import inf
from typing import Any
from urllib.parse import urlencode

from app.pages.common.mapping import KINDS, partial
from app.texts import _, gettext_noop
from training.config.fields import Setting, settings
from training.data.mapping import write_mapping
from training.errors import Problem

TABS = {
    "rows": gettext_noop("Rows"),
    "columns": gettext_noop("Columns"),
    "tokens": gettext_noop("Tokens"),
    "lengths": gettext_noop("Lengths"),
    "batches": gettext_noop("Batches"),
}
MEASURED = ("tokens", "lengths", "batches")
"""Tabs that need the data set tokenized for a model."""

_LONGEST_TEXT = 2000
_FIRST_ROWS = {"row": 1, "match": 1, "whole": 0}
_ROLE = "role."
_CHOICES = {"tab": tuple(TABS), "kind": tuple(KINDS)}

Pairs = Iterable[tuple[str, str]]
"""The names and values of an address."""


def _default(name: str) -> Any:
    return settings()[name].default


@dataclass(frozen=True)
class ViewState:
    """A data set, a tab, and the settings behind the tab's numbers; `row` counts from 1.

    `search` is a text in the rows and `match` the first row found on the page, from 1; `whole` is the row whose values are shown
    in full, 0 for none.
    `columns` is an unsaved mapping and `kind` its kind of rows (app/pages/common/mapping.py). The other settings have the names
    and bounds of a run's settings (training/config/run_config.py).
    """

    id: str = ""
    tab: str = "rows"
    model: str = ""
    max_length: int = _default("max_length")
    row: int = 1
    search: str = ""
    match: int = 1
    whole: int = 0
    micro_batch_size: int = _default("micro_batch_size")
    gradient_accumulation_steps: int = _default("gradient_accumulation_steps")
    num_processes: int = _default("num_processes")
    seed: int = _default("seed")
    epochs: float = _default("epochs")
    eval_split: float = _default("eval_split")
    columns: str = ""
    kind: str = ""

    @classmethod
    def of(cls, pairs: Pairs) -> "ViewState":
        """The state in an address: of each name the last valid value, else the default.

        So a form, which sends the previous value before the new one, keeps it if the new one is invalid. Fields such as
        `role.prompt` are those of the form of the column mapping, which has all roles.
        """
        values: dict[str, Any] = {}
        roles: dict[str, str] = {}
        for name, text in pairs:
            if name.startswith(_ROLE):
                roles[name.removeprefix(_ROLE)] = text  # the name of a column may end with a space
            elif (value := _parsed(name, text)) is not None:
                values[name] = value
        if roles:
            chosen = write_mapping({role: path for role, path in roles.items() if path})
            values["columns"] = write_mapping(partial(chosen))
        return cls(**values)

    def pairs(self, *without: str) -> list[tuple[str, str]]:
        """The names and values of the address, without default values and without these names."""
        usual = asdict(ViewState())
        values = {name: value for name, value in asdict(self).items() if value != usual[name] and name not in without}
        return [(name, _plain(value)) for name, value in values.items()]

    def link(self, **changes: Any) -> str:
        """The address of the page with some values changed."""
        return f"?{urlencode(replace(self, **changes).pairs())}"

    def problems(self, pairs: Pairs) -> list[Problem]:
        """Why numbers of the address are invalid, and what the page, which has this state, shows instead."""
        wrong = [(name, text) for name, text in pairs if _label(name) and text.strip() and _parsed(name, text) is None]
        return [_problem(name, text, getattr(self, name)) for name, text in wrong]


_TYPES: dict[str, Any] = {field.name: field.type for field in fields(ViewState)}


def _parsed(name: str, text: str) -> Any:
    """A value of the address, None if it is invalid or there is no such name."""
    if name not in _TYPES:
        return None
    if _TYPES[name] is str:
        word = text.replace("\0", "").strip()[:_LONGEST_TEXT]
        return word if word in _CHOICES.get(name, (word,)) else None
    if name in _FIRST_ROWS:
        return _row(text, _FIRST_ROWS[name])
    return _setting(settings()[name], _TYPES[name], text)


def _row(text: str, least: int) -> int | None:
    digits = text.replace(",", "").strip()
    return max(least, int(digits)) if digits.isdecimal() and len(digits) < 12 else None


def _setting(setting: Setting, kind: Any, text: str) -> Any:
    """The value as a run would accept it for this setting, or None."""
    try:
        number = kind(text.replace(",", "").strip())
    except ValueError:
        return None
    low, high = setting.minimum or 0, inf if setting.maximum is None else setting.maximum
    return number if low <= number <= high and not (setting.open_minimum and number == low) else None


def _label(name: str) -> str:
    """The label of a number that users type, empty for other names."""
    if name == "row":
        return _("Row")
    return _(settings()[name].label) if _TYPES.get(name) in (int, float) and name not in _FIRST_ROWS else ""


def _problem(name: str, text: str, shown: Any) -> Problem:
    bounds = _("1 or more") if name == "row" else settings()[name].bounds
    message = _("is not a number ({bounds}).") if _TYPES[name] is float else _("is not a whole number ({bounds}).")
    fix = _("The page shows {value}.").format(value=_plain(shown))
    return Problem(f"{_label(name)}: {text[:50]!r}", None, message.format(bounds=bounds), fix)


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
