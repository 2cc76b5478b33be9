"""Links and fields of the page of a data set. Links have real addresses, which the page follows without a reload."""

import json
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from app.pages.dataset.view import View


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
