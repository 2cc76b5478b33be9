"""Several data sets as the data of a run: a table to edit, and the changes that it sends. Pure."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from app.format import numbers
from app.pages.common.html import each, note_html, table
from app.texts import _
from training.config.data_sets import entries, last_part
from training.units import NONE
from worker.store.tables import Dataset

Sets = Mapping[str, Dataset]
"""Stored data sets by id."""


def label(value: str, stored: Sets) -> str:
    """A list of data sets as a choice: "2 data sets: alpaca.jsonl, chat.jsonl"."""
    found = entries(value) or []
    return (
        f"{numbers.plural(len(found), 'data set', 'data sets')}: {', '.join(_name(entry, stored) for entry in found)}"
    )


def changed(value: str, change: Mapping[str, Any]) -> str:
    """The setting after a change from the page: a data set to `add` or the index of one to `remove`, or a `key` of the data set
    number `set` with its new value."""
    found = entries(value)
    if found is None:
        found = [{"path": value}] if value else []
    if path := str(change.get("add") or ""):
        found += [{"path": path}] if all(entry.get("path") != path for entry in found) else []
    elif "remove" in change:
        found = [entry for index, entry in enumerate(found) if index != change["remove"]]
    elif change.get("key") in ("weight", "max_rows") and change.get("set") in range(len(found)):
        key, typed = str(change["key"]), _number(str(change.get("value") or "").strip())
        if typed == "" and key == "weight":
            for entry in found:  # the other weights would give this set the weight 1
                entry.pop("weight", None)
        elif typed == "":
            found[int(change["set"])].pop(key, None)
        else:
            found[int(change["set"])][key] = typed
    if not found:
        return ""
    return (
        str(found[0]["path"])
        if len(found) == 1 and set(found[0]) == {"path"}
        else json.dumps(found, ensure_ascii=False)
    )


def mix_html(found: Sequence[Mapping[str, Any]], stored: Sets) -> Markup:
    """The table of data sets with their weights and caps."""
    heads = each("<th>{}</th>", [(_("Data set"),), (_("Format"),)]) + each(
        '<th class="number" title="{}">{}</th>',
        [
            (_("Rows of the data set"), _("Rows")),
            (
                _("Share relative to the other sets. Empty for all: every row of every set, once an epoch."),
                _("Weight"),
            ),
            (_("Maximum number of rows that are used. Empty: all."), _("Max rows")),
            (_("Share of an epoch, by what the weights divide"), numbers.capitalized(_("share"))),
        ],
    )
    shares, weighted = _shares(found, stored), any(entry.get("weight") for entry in found)
    rows = zip(found, shares, strict=True)
    cells = [(_row(index, entry, stored, share, weighted=weighted),) for index, (entry, share) in enumerate(rows)]
    listed = table("mix", heads + Markup("<th></th>"), each("<tr>{}</tr>", cells))
    return listed + (note_html(_hint()) if weighted else Markup(""))


def _hint() -> Markup:
    hint = _(
        "In the group Model and data, <i>Mix by</i> says whether the weights divide rows or tokens, "
        "and <i>Epoch of a mixture</i> when an epoch ends."
    )
    return Markup(hint)  # noqa: S704 our own text


def add_html(others: Sequence[Dataset]) -> Markup:
    """The list from which another data set is added; nothing where there is none."""
    if not others:
        return Markup("")
    labels = [(item.id, f"{item.name} ({numbers.plural(item.rows, 'row', 'rows')})") for item in others]
    choices = Markup('<select data-key="add" data-set="-1"><option value="">{}</option>{}</select>').format(
        _("Choose"), each('<option value="{}">{}</option>', labels)
    )
    return Markup('<label class="add-set">{} {}</label>').format(_("Mix with another data set"), choices)


def _row(index: int, entry: Mapping[str, Any], stored: Sets, share: float | None, *, weighted: bool) -> Markup:
    name, item = _name(entry, stored), stored.get(str(entry.get("path")))
    link = Markup('<a href="/dataset?id={}">{}</a>').format(item.id, name) if item else name
    field = Markup(
        '<input type="number" min="0" step="{}" data-set="{}" data-key="{}" value="{}" aria-label="{}" placeholder="{}">'
    )
    weight, most = _("Weight of {name}").format(name=name), _("Maximum rows of {name}").format(name=name)
    cells = [
        Markup('<td class="clip" title="{}">{}</td><td>{}</td>').format(name, link, item.row_format if item else NONE),
        Markup('<td class="number">{}</td>').format(numbers.count(item.rows if item else None)),
        Markup('<td class="number">{}</td>').format(
            field.format("any", index, "weight", _shown(entry.get("weight")), weight, "1" if weighted else "")
        ),
        Markup('<td class="number">{}</td>').format(
            field.format("1", index, "max_rows", _shown(entry.get("max_rows")), most, _("all"))
        ),
        Markup('<td class="number">{}</td>').format(numbers.percent(share)),
        Markup('<td><button type="button" class="link" data-send="{}" aria-label="{}">{}</button></td>').format(
            json.dumps({"remove": index}), _("Remove {name}").format(name=name), _("Remove")
        ),
    ]
    return Markup("").join(cells)


def _shares(found: Sequence[Mapping[str, Any]], stored: Sets) -> list[float | None]:
    """The share of each set: of the weights, else of the rows."""
    amounts: list[float | None] = [_amount(entry.get("weight")) for entry in found]
    if any(amounts):
        amounts = [amount or 1.0 for amount in amounts]
    else:
        items = [stored.get(str(entry.get("path"))) for entry in found]
        amounts = [
            min(item.rows, _amount(entry.get("max_rows")) or item.rows) if item else None
            for item, entry in zip(items, found, strict=True)
        ]
    known = [amount for amount in amounts if amount is not None]
    total = sum(known) if len(known) == len(amounts) else 0
    return [amount / total if amount is not None and total else None for amount in amounts]


def _amount(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and value > 0 else None


def _name(entry: Mapping[str, Any], stored: Sets) -> str:
    path = str(entry.get("path", ""))
    item = stored.get(path)
    return str(entry.get("name") or (item.name if item else last_part(path)))


def _number(typed: str) -> Any:
    """A number as typed; other text stays text, which the check of the form names."""
    try:
        number = float(typed)
    except ValueError:
        return typed
    return int(number) if number == int(number) else number


def _shown(value: Any) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
