"""The table of runs and what stands around it, as HTML. Rows are kept apart, so that a browser gets only changed ones."""

from collections.abc import Iterator
from dataclasses import dataclass

from markupsafe import Markup, escape

from app.pages.common.html import each
from app.pages.runs.columns import DEFAULT, Names, columns
from app.pages.runs.view import ANY, PAGE, View
from app.words.datasets import data_names
from app.words.numbers import plural
from training.config.fields import settings
from worker.store.listed import filters
from worker.store.listed.run_list import GROUPS
from worker.store.tables import Run


@dataclass(frozen=True)
class Listing:
    """The runs of one page of the history: `rows` by id, in order."""

    before: str
    rows: tuple[tuple[str, str], ...]
    after: str

    @property
    def html(self) -> str:
        """The whole list."""
        return f"{self.before}{''.join(row for _, row in self.rows)}{self.after}"

    def changes(self, old: "Listing") -> str | None:
        """The rows that differ from `old`, or None if more than rows differ."""
        same_frame = (self.before, self.after) == (old.before, old.after)
        if not same_frame or [key for key, _ in self.rows] != [key for key, _ in old.rows]:
            return None
        return "".join(row for (_, row), (_, shown) in zip(self.rows, old.rows, strict=True) if row != shown)


def listing(runs: list[Run], total: int, sizes: dict[str, int], names: Names, view: View) -> Listing:
    """The list of `runs`, a page of `total` matching ones; `sizes` are those of the groups, if the view groups them."""
    query = Markup('<div data-query="{}" data-columns="{}">').format(view.query, ",".join(view.columns))
    if not runs:
        return Listing(str(query + _tools(view) + _empty(view, total)), (), "</div>")
    heads = Markup(
        '<th class="pick"><input type="checkbox" data-pick-all aria-label="Select all runs on this page"></th>'
    ) + Markup("").join(_head(name, view) for name in view.columns)
    opened = Markup('<div class="table-wrap"><table class="runs"><thead><tr>{}</tr></thead><tbody>')
    rows = tuple(_rows(runs, sizes, names, view))
    closed = Markup("</tbody></table></div>{}</div>").format(_pager(total, view))
    return Listing(str(query + _tools(view) + opened.format(heads)), rows, str(closed))


def _rows(runs: list[Run], sizes: dict[str, int], names: Names, view: View) -> Iterator[tuple[str, str]]:
    group = None
    for run in runs:
        value = _group_value(run, view.group, names)
        if view.group and value != group:
            group = value
            heading = Markup('<tr class="group"><td colspan="{}"><b>{}</b> <span class="faint">{}</span></td></tr>')
            size = plural(sizes[value], "run") if value in sizes else ""
            yield f"group {value}", str(heading.format(len(view.columns) + 1, value or "none", size))
        yield run.id, str(_row(run, names, view))


def _group_value(run: Run, group: str, names: Names) -> str:
    match group:
        case "":
            return ""
        case "owner" | "status":
            return str(getattr(run, group))
        case "sweep":
            return names.get(run.sweep_id or "", "")
        case "data":
            return data_names(str(run.config.get("data", "")), dict(names))
        case _:
            return str(run.config.get(group, ""))


def _row(run: Run, names: Names, view: View) -> Markup:
    pick = Markup('<td class="pick"><input type="checkbox" data-pick="{}" aria-label="Select {}"></td>').format(
        run.id, run.name
    )
    found = [columns()[name] for name in view.columns]
    cells = each('<td class="{}">{}</td>', [(column.classes, column.cell(run, names)) for column in found])
    return Markup('<tr data-run="{}" class="{}">{}{}</tr>').format(
        run.id, "archived" if run.archived_at else "", pick, cells
    )


def _head(name: str, view: View) -> Markup:
    column = columns()[name]
    number = "number" if "number" in column.classes else ""
    if not column.order:
        return Markup('<th class="{}"><span title="{}">{}</span></th>').format(number, name, column.label)
    sort = ("descending" if view.descending else "ascending") if view.order == column.order else "none"
    return Markup(
        """<th class="{}" aria-sort="{}"><button type="button" data-send='{{"order":"{}"}}'>{}</button></th>"""
    ).format(number, sort, column.order, column.label)


def _tools(view: View) -> Markup:
    """Grouping and the choice of columns, which show with the table at once."""
    groups = each(
        '<option value="{}"{}>{}</option>',
        [
            (group, Markup(" selected") if group == view.group else "", group.capitalize() or "None")
            for group in ("", *GROUPS)
        ],
    )
    return Markup('<div class="tools"><label>Group by <select data-group>{}</select></label>{}{}</div>').format(
        groups, _column_menu(view), _filter_help()
    )


def _column_menu(view: View) -> Markup:
    extra = [name for name in view.columns if name in settings()]
    offered = [name for name in columns() if name not in settings() or name in DEFAULT] + [
        name for name in extra if name not in DEFAULT
    ]
    boxes = each(
        '<label><input type="checkbox" data-column="{}"{}> {}</label>',
        [(name, Markup(" checked") if name in view.columns else "", columns()[name].label) for name in offered],
    )
    more = each(
        '<option value="{}">{}</option>', [(name, columns()[name].label) for name in columns() if name not in offered]
    )
    return Markup(
        '<details class="menu"><summary>Columns</summary><div class="menu-box"><div class="boxes">{}</div>'
        '<label>Setting <select data-add-column><option value="">Add a column</option>{}</select></label>'
        '<button type="button" class="button small" data-columns="">Reset</button></div></details>'
    ).format(boxes, more)


def _filter_help() -> Markup:
    items = each("<li><code>{}</code></li>", [(example,) for example in filters.fields().values()])
    return Markup(
        '<details class="menu"><summary>Filter</summary><div class="menu-box help"><p>Words search name, model, data, '
        "method, tags and id. Conditions narrow the list; <code>-</code> before one negates it.</p><ul>{}</ul><p>Every "
        "setting is a field too: <code>method:lora lora_r&gt;=16 learning_rate&lt;1e-4</code>.</p></div></details>"
    ).format(items)


def _pager(total: int, view: View) -> Markup:
    first, last = view.offset + 1, min(view.offset + PAGE, total)
    pages = max(1, -(-total // PAGE))
    buttons = [("First", 1), ("Previous", view.page - 1), ("Next", view.page + 1), ("Last", pages)]
    drawn = each(
        """<button type="button" class="button small" data-send='{{"page":{}}}'{}>{}</button>""",
        [
            (page, "" if 1 <= page <= pages and page != view.page else Markup(" disabled"), label)
            for label, page in buttons
        ],
    )
    counted = f"{first:,} to {last:,} of {plural(total, 'run')}" if pages > 1 else plural(total, "run")
    shown = Markup('<span class="buttons-row">{}</span>').format(drawn) if pages > 1 else Markup("")
    return Markup('<div class="pager"><span class="faint">{}</span>{}</div>').format(counted, shown)


def _empty(view: View, total: int) -> Markup:
    if total:
        return Markup(
            """<div class="empty"><h2>No runs on this page</h2><p>{} on earlier pages.</p>"""
            """<button type="button" class="button" data-send='{{"page":1}}'>First page</button></div>"""
        ).format(plural(total, "matching run"))
    if view.search or view.status != ANY:
        status, words = f"{view.status} " if view.status != ANY else "", escape(view.search)
        matching = Markup(" match “{}”").format(words) if view.search else ""
        return Markup(
            '<div class="empty"><h2>No matching runs</h2><p>No {}runs{}.</p><a class="button" href="/">Show all runs</a></div>'
        ).format(status, matching)
    return Markup(
        '<div class="empty"><h2>No runs yet</h2><p>A run fine-tunes a model on your data. '
        "A small model and sample data are included, so the first run needs no download.</p>"
        '<a class="button primary" href="/new">Start a run</a> <a class="button" href="/start">Take the tour</a></div>'
    )
