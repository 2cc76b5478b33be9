"""The tab Rows: all rows by pages, and those that contain a text. Pure functions."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup, escape

from app.pages.common.html import bar, each, panel, table
from app.pages.dataset.view import View, field, to
from app.words import numbers
from worker.datasets.row_search import Search

PAGE_ROWS = 25
_CELL_CHARACTERS, _TURN_CHARACTERS, _TURNS = 400, 200, 4
_COLUMNS = 8

Row = Mapping[str, Any]
"""A row as `training.data.files.browse.document` describes it."""


def row_tools_html(view: View) -> Markup:
    """The search box and the row to go to."""
    box = Markup(
        '<label class="box wide">Search all columns<input inputmode="search" id="field-search" data-field="search" value="{}" '
        'placeholder="text in any column" maxlength="200" autocomplete="off" spellcheck="false"></label>'
    ).format(view.search)
    clear = to(view, "Clear", key="clear-search", classes="button", search="", match=1) if view.search else ""
    goto = "" if view.search else field("row", "Go to row", view.row, size=9)
    return Markup('<div class="tools rows-tools">{}{}{}</div>').format(box, clear, goto)


def page_html(rows: Sequence[Row], columns: Sequence[str], view: View, total: int, reachable: int) -> Markup:
    """The page of rows that contains the view's row; `reachable` is the last row that pages show."""
    first = first_row(view)
    last = rows[-1]["row"] if rows else first
    heading = f"Rows {first:,} to {last:,} of {total:,}"
    following = min(first + PAGE_ROWS, last + 1)
    moves = _moves(
        view,
        "row",
        ("← Previous", max(first - PAGE_ROWS, 1) if first > 1 else None),
        ("Next →", following if following <= reachable else None),
        ("First", 1 if first > 1 else None),
        ("Last", (reachable - 1) // PAGE_ROWS * PAGE_ROWS + 1 if last < reachable else None),
    )
    note = (
        Markup('<p class="note">Pages show this file up to row {}; a search reads all of it.</p>').format(
            f"{reachable:,}"
        )
        if reachable < total
        else ""
    )
    return panel(heading, _table(rows, columns, view) + note, classes="row-pages", aside=moves)


def first_row(view: View) -> int:
    """The first row of the page that contains the view's row."""
    return (view.row - 1) // PAGE_ROWS * PAGE_ROWS + 1


def found_html(search: Search, columns: Sequence[str], view: View, total: int) -> Markup:
    """A page of the rows that a search (worker/datasets/row_search.py) has found, and its progress."""
    found = len(search.matches)
    if not found and search.state == "done":
        return _nothing(view)
    first = (view.match - 1) // PAGE_ROWS * PAGE_ROWS
    rows = search.matches[first : first + PAGE_ROWS]
    moves = _moves(
        view,
        "match",
        ("← Previous", max(first - PAGE_ROWS, 0) + 1 if first else None),
        ("Next →", first + PAGE_ROWS + 1 if first + PAGE_ROWS < found else None),
    )
    heading = f"{'More than ' if search.more else ''}{numbers.plural(found, 'row')} with “{view.search}”"
    shown = (
        Markup('<p class="note">Found rows {} to {}, in the order of the file.</p>').format(
            f"{first + 1:,}", f"{first + len(rows):,}"
        )
        if found > PAGE_ROWS
        else ""
    )
    body = _table(rows, columns, view) if rows else Markup('<p class="note">No row found so far.</p>')
    return panel(heading, _progress(search, total) + body + shown, classes="row-pages", aside=moves)


def _progress(search: Search, total: int) -> Markup:
    if search.state == "running":
        stop = Markup(
            """<button type="button" class="button small" id="stop-search" data-send='{"stop": true}'>Stop</button>"""
        )
        read = f"{search.read:,} of {numbers.plural(total, 'row')} searched"
        share = min(search.read / total, 1.0) if total else None
        return Markup('<div class="measuring searching">{}<span role="status">{} {}</span></div>').format(
            bar(share, label="rows searched", classes="wide"), read, stop
        )
    if search.state == "done":
        end = f"The search ended at row {search.read:,}: use a longer text to see later rows." if search.more else ""
        return Markup('<p class="advice-line">{}</p>').format(end) if end else Markup("")
    why = search.problem or f"The search was stopped at row {search.read:,} of {total:,}."
    again = Markup(
        """<button type="button" class="button small" id="search-again" data-send='{"again": true}'>Search again</button>"""
    )
    return Markup('<p class="advice-line" role="status">{} {}</p>').format(why, again)


def _nothing(view: View) -> Markup:
    return Markup(
        '<div class="empty"><h2>No row contains “{}”</h2><p>The search reads every column of every row and ignores case.</p></div>'
    ).format(view.search)


def _moves(view: View, name: str, *targets: tuple[str, int | None]) -> Markup:
    links = [
        Markup('<span class="button small off">{}</span>').format(label)
        if target is None
        else _move(view, label, {name: target, "whole": 0})
        for label, target in targets
    ]
    return Markup('<nav class="moves" aria-label="Pages of rows">{}</nav>').format(Markup("").join(links))


def _move(view: View, label: str, changes: dict[str, Any]) -> Markup:
    return to(view, label, key=f"rows-{label.strip('← →').lower()}", classes="button small", **changes)


def _table(rows: Sequence[Row], columns: Sequence[str], view: View) -> Markup:
    shown = columns[:_COLUMNS]
    heads = Markup('<th class="row-number">Row</th>') + each("<th>{}</th>", [(column,) for column in shown])
    more = (
        Markup('<p class="note">{} more columns are shown with a row in full.</p>').format(len(columns) - _COLUMNS)
        if len(columns) > _COLUMNS
        else ""
    )
    lines = Markup("").join(_line(row, shown, columns, view) for row in rows)
    return table("sample calm", heads, lines) + more


def _line(row: Row, shown: Sequence[str], columns: Sequence[str], view: View) -> Markup:
    number = row["row"]
    whole = number == view.whole
    links = to(view, "as tokens", classes="row-link", tab="tokens", row=number, search="", match=1, whole=0)
    head = Markup('<td class="row-number">{}{}{}</td>').format(f"{number:,}", links, _toggle(row, columns, view))
    marked = " class=marked" if number == view.row and view.row != first_row(view) and not view.search else ""
    start = Markup('<tr id="row-{}"{}>').format(number, marked)
    if "problem" in row:
        problem = Markup('<td colspan="{}"><b class="bad">{}</b> {}</td></tr>')
        return start + head + problem.format(max(len(shown), 1), row["problem"], row["fix"])
    if whole:
        return start + head + Markup('<td colspan="{}">{}</td></tr>').format(max(len(shown), 1), _in_full(row))
    cells = each("<td>{}</td>", [(cell_html(row["values"].get(name)),) for name in shown])
    return start + head + cells + Markup("</tr>")


def _toggle(row: Row, columns: Sequence[str], view: View) -> Markup:
    number = row["row"]
    if number == view.whole:
        return to(view, "show less", key=f"whole-{number}", classes="row-link", whole=0)
    hidden = row["cut"] or len(columns) > _COLUMNS or any(_is_long(value) for value in row["values"].values())
    if not hidden or "problem" in row:
        return Markup("")
    return to(view, "show all", key=f"whole-{number}", classes="row-link", whole=number)


def _is_long(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) > _CELL_CHARACTERS or value.count("\n") > 6
    if _is_conversation(value):
        return len(value) > _TURNS or any(len(_content(turn)) > _TURN_CHARACTERS for turn in value)
    return isinstance(value, (dict, list)) and len(_json(value)) > _CELL_CHARACTERS


def _in_full(row: Row) -> Markup:
    """Every value of a row, one below the other."""
    notes = {name: Markup(' <em class="faint">first 1,000,000 characters</em>') for name in row["cut"]}
    pairs = [(name, notes.get(name, ""), _whole_value(value)) for name, value in row["values"].items()]
    return Markup('<dl class="in-full">{}</dl>').format(each("<dt>{}{}</dt><dd>{}</dd>", pairs))


def _whole_value(value: Any) -> Markup:
    if _is_conversation(value):
        turns = [(turn.get("role", turn.get("from")), _content(turn)) for turn in value]
        return Markup('<div class="turns">{}</div>').format(each("<div><b>{}</b> {}</div>", turns))
    if isinstance(value, (dict, list)):
        return Markup('<pre class="mono">{}</pre>').format(_json(value, indent=2))
    return _none() if value is None else escape(_plain(value))


def cell_html(value: Any) -> Markup:
    """A value of a row, shortened: a text, a conversation for messages, else JSON."""
    if value is None:
        return _none()
    if isinstance(value, str):
        return Markup('<div class="clamp">{}</div>').format(numbers.shorten(value, _CELL_CHARACTERS))
    if _is_conversation(value):
        turns = [
            (turn.get("role", turn.get("from")), numbers.shorten(_content(turn), _TURN_CHARACTERS))
            for turn in value[:_TURNS]
        ]
        rest = len(value) - _TURNS
        more = Markup('<span class="faint">and {} more</span>').format(numbers.plural(rest, "message"))
        return Markup('<div class="turns">{}{}</div>').format(
            each("<div><b>{}</b> {}</div>", turns), more if rest > 0 else ""
        )
    return Markup('<div class="clamp mono">{}</div>').format(numbers.shorten(_json(value), _CELL_CHARACTERS))


def _none() -> Markup:
    return Markup('<span class="faint">none</span>')


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else _json(value)


def _json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _content(turn: Mapping[str, Any]) -> str:
    content = turn.get("content", turn.get("value"))
    calls = turn.get("tool_calls")
    return ("" if content is None else _plain(content)) + (f" {_json(calls)}" if calls else "")


def _is_conversation(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(turn, dict) and any(key in turn for key in ("role", "from")) for turn in value)
    )
