"""The view of a data set, which its page's address holds, so that a refresh and a shared link show the same; links and fields
that change it, which the page follows without a reload.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from math import inf
from typing import Any
from urllib.parse import urlencode

from markupsafe import Markup

from training.config.fields import settings

TABS = {"rows": "Rows", "columns": "Columns", "tokens": "Tokens", "lengths": "Lengths", "batches": "Batches"}
MEASURED = ("tokens", "lengths", "batches")
"""Tabs that need the data set tokenized for a model."""

_LONGEST_TEXT = 2000
_FIRST_ROWS = {"row": 1, "match": 1, "whole": 0}


def _default(name: str) -> Any:
    return settings()[name].default


@dataclass(frozen=True)
class View:
    """A data set, a tab, and the settings behind the tab's numbers; `row` counts from 1.

    `search` is a text in the rows and `match` the first row found on the page, from 1; `whole` is the row whose values are shown
    in full, 0 for none.
    `columns` is an unsaved mapping and `kind` its kind of rows (app/pages/dataset/columns.py). The other settings have the
    names and bounds of a run's settings (training/config/run_config.py).
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
    def of(cls, query: Mapping[str, str]) -> "View":
        """The view in an address; invalid values get their default."""
        return cls().changed(query)

    def changed(self, values: Mapping[str, Any]) -> "View":
        """The view with other values; invalid values change nothing."""
        known = {field.name: field.type for field in fields(self)}
        parsed = {name: self._fit(name, known[name], value) for name, value in values.items() if name in known}
        return replace(self, **{name: value for name, value in parsed.items() if value is not None})

    def takes(self, name: str, value: Any) -> bool:
        """True if the value is valid."""
        known = {field.name: field.type for field in fields(self)}
        return name in known and self._fit(name, known[name], value) is not None

    @property
    def query(self) -> str:
        """The view as the query of an address, without default values."""
        usual = asdict(View())
        return urlencode({name: _plain(value) for name, value in asdict(self).items() if value != usual[name]})

    def link(self, **changes: Any) -> str:
        """The address of the view with some values changed."""
        return f"/dataset?{replace(self, **changes).query}"

    def _fit(self, name: str, kind: Any, value: Any) -> Any:
        if kind is str:
            word = str(value).strip()[:_LONGEST_TEXT]
            return word if name != "tab" or word in TABS else None
        return _row(value, _FIRST_ROWS[name]) if name in _FIRST_ROWS else _setting(name, kind, value)


def _row(value: Any, least: int) -> int | None:
    written = str(value).replace(",", "").strip()
    return max(least, int(written)) if written.isdecimal() and len(written) < 12 else None


def _setting(name: str, kind: Any, value: Any) -> Any:
    """The value as a run would accept it for this setting, or None."""
    known = settings()[name]
    try:
        number = kind(str(value).replace(",", "").strip())
    except ValueError:
        return None
    low, high = known.minimum or 0, inf if known.maximum is None else known.maximum
    return number if low <= number <= high and not (known.open_minimum and number == low) else None


def _plain(value: Any) -> Any:
    return f"{value:g}" if isinstance(value, float) else value


def to(view: View, label: Any, *, key: str = "", classes: str = "", current: bool = False, **changes: Any) -> Markup:
    """A link to another view of the data set. `key` is its id, so that it keeps the focus when the page is redrawn."""
    here = Markup(' aria-current="page"') if current else ""
    named = Markup(' id="{}"').format(key) if key else ""
    return Markup('<a{} class="{}" href="{}" data-send="{}"{}>{}</a>').format(
        named, classes, view.link(**changes), json.dumps(changes), here, label
    )


def row_links(view: View, rows: Sequence[int]) -> Markup:
    """Rows (from 1) as links to the tab Tokens."""
    return Markup(", ").join(to(view, f"{row:,}", classes="row-link", tab="tokens", row=row) for row in rows)


def field(name: str, label: str, value: Any, *, size: int = 8, hint: str = "") -> Markup:
    """A number field, which is sent on blur or Enter."""
    return Markup(
        '<label class="box" title="{}">{}<input id="field-{}" data-field="{}" value="{}" size="{}" inputmode="numeric" '
        'autocomplete="off"></label>'
    ).format(hint, label, name, name, value, size)


def combobox(name: str, label: str, value: str, choices: Sequence[tuple[str, str]], placeholder: str) -> Markup:
    """A text field with suggestions (value, label)."""
    options = Markup("").join(Markup('<option value="{}">{}</option>').format(*choice) for choice in choices)
    return Markup(
        '<label class="box wide">{}<input id="field-{}" data-field="{}" data-choose value="{}" list="list-{}" '
        'placeholder="{}" autocomplete="off" spellcheck="false"><datalist id="list-{}">{}</datalist></label>'
    ).format(label, name, name, value, name, placeholder, name, options)


def select(name: str, label: str, value: str, choices: Sequence[tuple[str, str]], *, note: str = "") -> Markup:
    """A dropdown of choices (value, label)."""
    options = Markup("").join(
        Markup('<option value="{}"{}>{}</option>').format(key, Markup(" selected") if key == value else "", shown)
        for key, shown in choices
    )
    return Markup(
        '<label class="box select">{}<select id="field-{}" data-field="{}">{}</select><small>{}</small></label>'
    ).format(label, name, name, options, note)
