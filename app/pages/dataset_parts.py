"""The pieces of the page of a data set as HTML: heading, facts, what is wrong with it, its rows. Pure functions."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from app import text
from app.dataset_words import problems_of, where
from app.pages.dataset_links import combobox, field, to
from app.pages.dataset_view import MEASURED, TABS, View
from app.pages.parts import ago, bar, each, facts, panel, table
from training.failure import DataError
from training.formats import UNKNOWN
from worker.models import Dataset

_CELL_CHARACTERS = 400
_FINGERPRINT_SHOWN = 16


def heading(item: Dataset, users: Sequence[tuple[str, str]], view: View) -> Markup:
    """Name, where it came from, what uses it, and what can be done with it. `users` are (id, name) of runs."""
    aside = [
        Markup('<span class="mono">{}</span>').format(item.id),
        Markup("added {}").format(ago(item.created_at)),
        _used(users),
    ]
    use = {"data": item.id, "model": view.model} | ({"max_length": view.max_length} if view.tab in MEASURED else {})
    links = Markup('<div class="links"><a class="button" href="/datasets">All data sets</a>{}</div>').format(
        use_link(use)
    )
    return Markup('<div class="set-title"><div><h1>{}</h1><p>{}</p></div>{}</div>').format(
        item.name, Markup(" · ").join(aside), links
    )


def use_link(values: Mapping[str, Any], classes: str = "button primary") -> Markup:
    """A link to a new run that begins with these settings."""
    from urllib.parse import urlencode

    return Markup('<a class="{}" href="/new?{}">Use in a new run</a>').format(classes, urlencode(values))


def facts_html(item: Dataset) -> Markup:
    """Format with its reason, rows, size and fingerprint; then each problem with its place and its fix."""
    fingerprint = Markup(
        '<button type="button" class="copy" data-copy="{}" title="SHA-256 {}: click to copy">{}…</button>'
    ).format(item.sha256, item.sha256, item.sha256[:_FINGERPRINT_SHOWN])
    pairs = [
        ("Format", item.shape),
        ("File", item.format),
        ("Rows", text.count(item.rows)),
        ("Size", text.byte_size(item.bytes)),
        ("Owner", item.owner),
        ("Columns", ", ".join(item.columns[:8]) + (", …" if len(item.columns) > 8 else "")),
        ("Fingerprint", fingerprint),
    ]
    because = Markup('<p class="note">{}</p>').format(_reason(item)) if _reason(item) else ""
    return panel(
        "",
        Markup('<div class="set-facts">{}{}{}</div>').format(facts(pairs), because, issues_html(item.warnings or [])),
        classes="bare",
    )


def _reason(item: Dataset) -> str:
    if item.shape == UNKNOWN:
        return ""  # the problem below says it
    told = f"{item.shape.capitalize()}, because {item.reason.rstrip('.')}." if item.reason else ""
    counts = item.counts or {}
    if len(counts) > 1:
        told += (
            " It holds " + ", ".join(f"{text.plural(rows, 'row')} of {shape}" for shape, rows in counts.items()) + "."
        )
    return told


def issues_html(issues: Sequence[Mapping[str, Any]]) -> Markup:
    """What is wrong, each with its line, its field, how many rows have it and what to do."""
    items = [
        (issue.get("level") or "error", place(issue), issue.get("message", ""), issue.get("fix", ""))
        for issue in issues
    ]
    if not items:
        return Markup("")
    return Markup('<ul class="issues">{}</ul>').format(
        each('<li class="{}"><span class="where">{}</span> {} <em>{}</em></li>', items)
    )


def problems_html(error: DataError) -> Markup:
    """Everything that is wrong with a file that was refused."""
    return issues_html(problems_of(error))


def place(issue: Mapping[str, Any]) -> str:
    """Where a problem is, before what it is."""
    told = where(issue)
    return f"{told}:" if told else ""


def tabs_html(view: View) -> Markup:
    """The tabs; the address that the browser should show rides along."""
    links = Markup("").join(
        to(view, label, key=f"tab-{tab}", current=tab == view.tab, tab=tab) for tab, label in TABS.items()
    )
    return Markup('<nav class="tabs" data-query="{}" aria-label="What of the data set is shown">{}</nav>').format(
        view.query, links
    )


def tools_html(view: View, models: Sequence[tuple[str, str]]) -> Markup:
    """The settings that the numbers of a tab are worked out for. `models` are (value, label)."""
    if view.tab not in MEASURED:
        return Markup("")
    boxes = [
        combobox("model", "Model, for its tokenizer and template", view.model, models, "folder or hub id"),
        field("max_length", "Maximum length, tokens", view.max_length),
    ]
    if view.tab == "batches":
        boxes += [
            field("micro_batch_size", "Micro batch, rows", view.micro_batch_size, size=5),
            field("gradient_accumulation_steps", "Accumulation", view.gradient_accumulation_steps, size=5),
            field("num_processes", "Processes", view.num_processes, size=5),
            field("seed", "Seed", view.seed, size=6),
            field("epochs", "Epochs", f"{view.epochs:g}", size=4),
            field(
                "eval_split",
                "Held out",
                f"{view.eval_split:g}",
                size=5,
                hint="Rows held out for evaluation: a share below 1, or a number",
            ),
        ]
    return Markup('<div class="tools">{}</div>').format(Markup("").join(boxes))


def progress_html(done: int, total: int | None) -> Markup:
    """How far the counting of tokens is."""
    share = min(done / total, 1.0) if total else None
    counted = f"{done:,} of {text.plural(total, 'row')}" if total else text.plural(done, "row")
    body = Markup(
        '<div class="measuring">{}<span>{} read. It goes on when the page is closed; a tokenizer needs it once.</span></div>'
    )
    return panel("Counting tokens", body.format(bar(share, label="rows read", classes="wide"), counted))


def trouble_html(heading: str, message: Markup | str, fix: str = "") -> Markup:
    """Something that keeps a tab from being shown."""
    return Markup('<div class="alert" role="alert"><b>{}</b> {} <em>{}</em></div>').format(heading, message, fix)


def done_html(message: str) -> Markup:
    """Something that went as it was asked for."""
    return Markup('<div class="banner" role="status">{}</div>').format(message)


def rows_html(item: Dataset) -> Markup:
    """The first rows as they stand in the file, long texts cut short."""
    columns = item.columns[:8]
    heads = Markup("<th></th>") + each("<th>{}</th>", [(column,) for column in columns])
    lines = [
        Markup('<tr><td class="row-number">{}</td>{}</tr>').format(
            number, each("<td>{}</td>", [(cell_html(row.get(name)),) for name in columns])
        )
        for number, row in enumerate(item.sample, 1)
    ]
    note = Markup('<p class="note">Rows 1 to {} of {}, long texts cut short.</p>').format(
        len(item.sample), text.count(item.rows)
    )
    return panel("First rows", table("sample calm", heads, Markup("").join(lines)) + note)


def cell_html(value: Any) -> Markup:
    """A value of a row: text as it is, messages as a conversation, anything else as JSON."""
    if value is None:
        return Markup('<span class="faint">none</span>')
    if isinstance(value, str):
        return Markup('<div class="clamp">{}</div>').format(text.shorten(value, _CELL_CHARACTERS))
    if _is_talk(value):
        turns = [
            (turn.get("role", turn.get("from")), text.shorten(str(turn.get("content", turn.get("value"))), 200))
            for turn in value[:4]
        ]
        more = (
            Markup('<span class="faint">and {} more</span>').format(text.plural(len(value) - 4, "message"))
            if len(value) > 4
            else ""
        )
        return Markup('<div class="turns">{}{}</div>').format(each("<div><b>{}</b> {}</div>", turns), more)
    written = json.dumps(value, ensure_ascii=False, indent=1 if isinstance(value, dict) else None)
    return Markup('<div class="clamp mono">{}</div>').format(text.shorten(written, _CELL_CHARACTERS))


def _is_talk(value: Any) -> bool:
    roles = ("role", "from")
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(turn, dict) and any(key in turn for key in roles) for turn in value)
    )


def _used(users: Sequence[tuple[str, str]]) -> Markup:
    if not users:
        return Markup("no run uses it")
    named = Markup(", ").join(Markup('<a href="/run?id={}">{}</a>').format(run_id, name) for run_id, name in users[:3])
    more = f" and {len(users) - 3} more" if len(users) > 3 else ""
    return Markup("used by {}{}").format(named, more)


def missing_html(reason: str) -> Markup:
    """The page of a data set that does not exist."""
    template = Markup(
        '<div class="empty"><h2>No such data set</h2><p>{}</p><a class="button" href="/datasets">Show all data sets</a></div>'
    )
    return template.format(reason)
