"""The parts of the page of a data set as HTML: heading, facts, issues and rows. Pure functions."""

from collections.abc import Sequence

from markupsafe import Markup

from app.pages.common.html import ago, bar, facts, note_html, panel, share_button
from app.pages.common.issues import issues_html, use_link
from app.pages.dataset.rows import row_tools_html
from app.pages.dataset.view import MEASURED, TABS, View, combobox, field, to
from app.words import numbers
from training.data.row_formats import UNKNOWN
from training.units import byte_size
from worker.datasets import datasets
from worker.store.tables import Dataset

_FINGERPRINT_SHOWN = 16


def heading(item: Dataset, users: Sequence[tuple[str, str]], view: View) -> Markup:
    """Name, id, age, the runs that use it, and links. `users` are (id, name) of runs."""
    aside = [
        Markup('<span class="mono">{}</span>').format(item.id),
        Markup("added {}").format(ago(item.created_at)),
        _used(users),
    ]
    use = {"data": item.id, "model": view.model} | ({"max_length": view.max_length} if view.tab in MEASURED else {})
    links = Markup('<div class="links"><a class="button" href="/datasets">All data sets</a>{}{}</div>').format(
        share_button("datasets", item.id, item.owner), use_link(use)
    )
    return Markup('<div class="set-title"><div><h1>{}</h1><p>{}</p></div>{}</div>').format(
        item.name, Markup(" · ").join(aside), links
    )


def facts_html(item: Dataset) -> Markup:
    """Format with its reason, rows, size and SHA-256; then each issue with its place and its fix."""
    fingerprint = Markup(
        '<button type="button" class="copy" data-copy="{}" title="SHA-256 {}: click to copy">{}…</button>'
    ).format(item.sha256, item.sha256, item.sha256[:_FINGERPRINT_SHOWN])
    pairs = [
        ("Format", item.shape),
        ("File", item.format),
        ("Rows", numbers.count(item.rows)),
        ("Size", byte_size(item.bytes)),
        ("Owner", item.owner),
        ("Columns", ", ".join(item.columns[:8]) + (", …" if len(item.columns) > 8 else "")),
        ("Columns not used", ", ".join(datasets.unused(item)[:8])),
        ("SHA-256", fingerprint),
    ]
    pairs = [pair for pair in pairs if pair[1] or pair[0] != "Columns not used"]
    reason = note_html(_reason(item)) if _reason(item) else ""
    return panel(
        "",
        Markup('<div class="set-facts">{}{}{}</div>').format(facts(pairs), reason, issues_html(item.warnings or [])),
        classes="bare",
    )


def _reason(item: Dataset) -> str:
    if item.shape == UNKNOWN:
        return ""  # the issue below says it
    reason = f"{item.shape.capitalize()}, because {item.reason.rstrip('.')}." if item.reason else ""
    counts = item.counts or {}
    if len(counts) > 1:
        formats = ", ".join(f"{numbers.plural(rows, 'row')} of {shape}" for shape, rows in counts.items())
        reason += f" Contains {formats}."
    return reason


def tabs_html(view: View) -> Markup:
    """The tabs, with the query that the browser shows in its address."""
    links = Markup("").join(
        to(view, label, key=f"tab-{tab}", current=tab == view.tab, tab=tab) for tab, label in TABS.items()
    )
    return Markup('<nav class="tabs" data-query="{}" aria-label="Tabs of the data set">{}</nav>').format(
        view.query, links
    )


def tools_html(view: View, models: Sequence[tuple[str, str]]) -> Markup:
    """The settings behind a tab's numbers. `models` are (value, label)."""
    if view.tab == "rows":
        return row_tools_html(view)
    if view.tab not in MEASURED:
        return Markup("")
    boxes = [
        combobox("model", "Model (tokenizer and chat template)", view.model, models, "folder or hub id"),
        field("max_length", "Max length (tokens)", view.max_length),
    ]
    if view.tab == "batches":
        boxes += [
            field("micro_batch_size", "Micro batch size", view.micro_batch_size, size=5),
            field("gradient_accumulation_steps", "Gradient accumulation", view.gradient_accumulation_steps, size=5),
            field("num_processes", "Processes", view.num_processes, size=5),
            field("seed", "Seed", view.seed, size=6),
            field("epochs", "Epochs", f"{view.epochs:g}", size=4),
            field(
                "eval_split",
                "Eval split",
                f"{view.eval_split:g}",
                size=5,
                hint="Rows held out for evaluation: a share below 1 or a number of rows",
            ),
        ]
    return Markup('<div class="tools">{}</div>').format(Markup("").join(boxes))


def progress_html(done: int, total: int | None) -> Markup:
    """The progress of tokenizing the data set."""
    share = min(done / total, 1.0) if total else None
    counted = f"{done:,} of {numbers.plural(total, 'row')}" if total else numbers.plural(done, "row")
    body = Markup(
        '<div class="measuring">{}<span>{} read. Needed once per tokenizer; continues if you close the page.</span></div>'
    )
    return panel("Tokenizing", body.format(bar(share, label="rows read", classes="wide"), counted))


def alert_html(heading: str, message: Markup | str, fix: str = "") -> Markup:
    """An error with its fix."""
    return Markup('<div class="alert" role="alert"><b>{}</b> {} <em>{}</em></div>').format(heading, message, fix)


def done_html(message: str) -> Markup:
    """The confirmation of a successful action."""
    return Markup('<div class="banner" role="status">{}</div>').format(message)


def _used(users: Sequence[tuple[str, str]]) -> Markup:
    if not users:
        return Markup("not used by any run")
    named = Markup(", ").join(Markup('<a href="/run?id={}">{}</a>').format(run_id, name) for run_id, name in users[:3])
    more = f" and {len(users) - 3} more" if len(users) > 3 else ""
    return Markup("used by {}{}").format(named, more)
