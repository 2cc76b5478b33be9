"""The page Runs, at /: the history, filtered and sorted by its address (/?search=...&status=...&order=...)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeGuard
from urllib.parse import urlencode

import gradio as gr
from markupsafe import Markup

from app.pages.common.cache import TimedCache
from app.pages.common.html import (
    QUIET,
    ago,
    bar,
    database_unreachable,
    each,
    html,
    share_done,
    status_word,
    table,
    title,
    took,
)
from app.words import numbers
from app.words.datasets import data_names
from training.config.fields import settings
from training.units import NONE, byte_size
from worker.datasets import datasets
from worker.machine import overload
from worker.store import database, runs
from worker.store.database import UNREACHABLE
from worker.store.tables import Run, Status

MOST_RUNS = 500
ANY = "all"
_REFRESH_SECONDS = 3.0

# Heading, column to sort by, right-aligned.
_COLUMNS = (
    ("Status", "status", False),
    ("Name", "name", False),
    ("Model", "model", False),
    ("Data", "data", False),
    ("Method", "method", False),
    ("Progress", "progress", False),
    ("Loss", "final_loss", True),
    ("Best eval loss", "best_loss", True),
    ("Duration", "duration", True),
    ("Peak memory", "peak_bytes", True),
    ("Owner", "owner", False),
    ("Queued", "queued_at", True),
)


@dataclass(frozen=True)
class View:
    """Filter and order of the history."""

    search: str = ""
    status: str = ANY
    order: str = "queued_at"
    descending: bool = True

    @classmethod
    def of(cls, query: Mapping[str, str]) -> "View":
        """The view in an address; invalid values get their default."""
        status, order = query.get("status", ANY), query.get("order", cls.order)
        return cls(
            search=query.get("search", "")[:200],
            status=status if status in list(Status) else ANY,
            order=order if order in {name for _, name, _ in _COLUMNS} else cls.order,
            descending=query.get("ascending") != "1",
        )

    @property
    def query(self) -> str:
        """The view as the query of an address; empty for the default view."""
        values = {
            "search": self.search,
            "status": self.status,
            "order": self.order,
            "ascending": "" if self.descending else "1",
        }
        return urlencode(
            {name: value for name, value in values.items() if value not in ("", getattr(View, name, None))}
        )

    def ordered_by(self, order: str) -> "View":
        """The view sorted by `order`, reversed if it already is."""
        if order == self.order:
            return replace(self, descending=not self.descending)
        return replace(
            self, order=order, descending=order not in ("name", "model", "data", "method", "status", "owner")
        )


@dataclass(frozen=True)
class Shown:
    """What a browser shows: the view and its table."""

    view: View = View()
    table: str = ""


_tables: TimedCache[View, str] = TimedCache(seconds=1.0)


def build(demo: gr.Blocks) -> None:
    """Components, handlers and wiring of the page."""
    shown = gr.State(Shown())
    title("Runs", Markup('<a class="button primary" href="/new">New run</a>'))
    with gr.Row(elem_classes="filters"):
        bare: dict[str, Any] = {"show_label": False, "container": False}
        search = gr.Textbox(
            label="Search", placeholder="Search name, model, data, method or id", scale=3, elem_id="search", **bare
        )
        choices = [(value.capitalize(), value) for value in (ANY, *Status)]
        status = gr.Radio(
            choices, value=ANY, label="Status", scale=4, elem_classes="segmented", elem_id="status", **bare
        )
    history = html(script="lathe.runs(element, trigger, watch)")
    timer = gr.Timer(_REFRESH_SECONDS)

    def opened(request: gr.Request) -> tuple[Shown, str, str, str]:
        view = View.of(request.query_params)
        rendered = _rendered(view)
        return Shown(view, rendered), view.search, view.status, rendered

    def filtered(words: str, chosen: str, before: Shown) -> tuple[Any, Any]:
        return _show(replace(before.view, search=(words or "").strip(), status=chosen or ANY), before)

    def sorted_by(event: gr.EventData, before: Shown) -> tuple[Any, Any]:
        order = event._data.get("order") if isinstance(event._data, dict) else None
        return _show(before.view.ordered_by(order), before) if _known(order) else (gr.skip(), gr.skip())

    def ticked(before: Shown, request: gr.Request) -> tuple[Any, Any]:
        restarted = not before.table  # the server restarted after the page was opened
        return _show(View.of(request.query_params) if restarted else before.view, before)

    gr.on(
        [search.change, status.change],
        filtered,
        [search, status, shown],
        [shown, history],
        trigger_mode="always_last",
        **QUIET,
    )
    history.select(sorted_by, shown, [shown, history], **QUIET)
    timer.tick(ticked, shown, [shown, history], **QUIET)
    demo.load(opened, None, [shown, search, status, history], **QUIET)


def render(view: View) -> str:
    """The table of runs, or an empty state."""
    with database.read() as session:
        listed = runs.listing(
            session=session,
            status=None if view.status == ANY else Status(view.status),
            search=view.search,
            order_by=view.order,
            descending=view.descending,
            limit=MOST_RUNS,
        )
        names = {item.id: item.name for item in datasets.listing(session=session)} if listed else {}
    query = Markup('<div data-query="{}">').format(view.query)
    if not listed:
        return query + _empty(view) + Markup("</div>")
    return query + _table(listed, names, view) + _note(listed) + Markup("</div>")


def _rendered(view: View) -> str:
    try:
        return _tables.get(view, lambda: render(view))
    except UNREACHABLE:
        return database_unreachable()


def _show(view: View, before: Shown) -> tuple[Any, Any]:
    rendered = _rendered(view)
    if rendered == before.table:
        return gr.skip(), gr.skip()
    return Shown(view, rendered), rendered


def _known(order: Any) -> TypeGuard[str]:
    return any(order == name for _, name, _ in _COLUMNS)


def _table(listed: list[Run], names: dict[str, str], view: View) -> Markup:
    heads = Markup("").join(_head(label, order, view, number=number) for label, order, number in _COLUMNS)
    return table("runs", heads, Markup("").join(_row(run, names) for run in listed))


def _head(label: str, order: str, view: View, *, number: bool) -> Markup:
    sort = ("descending" if view.descending else "ascending") if view.order == order else "none"
    return Markup(
        """<th class="{}" aria-sort="{}"><button type="button" data-send='{{"order":"{}"}}'>{}</button></th>"""
    ).format("number" if number else "", sort, order, label)


def _row(run: Run, names: dict[str, str]) -> Markup:
    config = run.config
    data = data_names(str(config.get("data", "")), names)
    loss = Markup('<span class="bad">diverged</span>') if run.diverged else numbers.decimal(run.final_loss)
    cells = [
        ("", status_word(run.status, run.request)),
        ("name", Markup('<a href="/run?id={}" title="{}">{}</a>').format(run.id, run.name, run.name)),
        ("clip", _clipped(str(config.get("model", "")))),
        ("clip", _clipped(data)),
        ("", method(config)),
        ("", progress(run)),
        ("number", loss),
        ("number", numbers.decimal(run.best_loss)),
        ("number", took(run)),
        ("number", byte_size(run.peak_bytes)),
        ("", run.owner),
        ("number", ago(run.queued_at)),
    ]
    return Markup("<tr>{}</tr>").format(each('<td class="{}">{}</td>', cells))


def method(config: Mapping[str, Any]) -> Markup:
    """The method and, for several processes, the strategy: "LoRA", "QLoRA ZeRO stage 2 x4"."""
    name = settings()["method"].in_words(config.get("method"))
    processes, strategy = config.get("num_processes", 1), config.get("strategy")
    distributed = "" if strategy == "single" else f"{settings()['strategy'].in_words(strategy)} x{processes}"
    return Markup('{} <span class="faint">{}</span>').format(name, distributed)


def progress(run: Run) -> Markup:
    """The bar and percentage of a run, or its phase before the number of steps is known."""
    share = share_done(run)
    if share is None:
        phase = run.phase if run.status is Status.RUNNING else ""
        return Markup('<span class="faint">{}</span>').format(phase or NONE)
    label = f"step {run.step:,} of {run.total_steps:,}"
    drawn = bar(share, label=label, classes=run.status.value)
    return Markup('<span class="progress" title="{}">{}<b>{}</b></span>').format(
        label, drawn, numbers.percent(share, 0)
    )


def _clipped(path: str) -> Markup:
    short = path.rstrip("/").rsplit("/", 1)[-1] if path.startswith(("/", ".", "~")) else path
    return Markup('<span title="{}">{}</span>').format(path, short)


def _note(listed: list[Run]) -> Markup:
    notes = [f"Showing the first {MOST_RUNS} runs. Search to find others."] if len(listed) >= MOST_RUNS else []
    if any(run.status is Status.QUEUED for run in listed):
        notes.append(overload.in_words())
    return each('<p class="note">{}</p>', [(note,) for note in notes if note])


def _empty(view: View) -> Markup:
    if view.search or view.status != ANY:
        return Markup(
            '<div class="empty"><h2>No matching runs</h2><p>No {}runs{}.</p><a class="button" href="/">Show all runs</a></div>'
        ).format(f"{view.status} " if view.status != ANY else "", f" match “{view.search}”" if view.search else "")
    return Markup(
        '<div class="empty"><h2>No runs yet</h2><p>A run fine-tunes a model on your data. '
        "A small model and sample data are included, so the first run needs no download.</p>"
        '<a class="button primary" href="/new">Start a run</a></div>'
    )
