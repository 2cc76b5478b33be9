"""The columns of the table of runs. Each setting is a column as well, by its name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from markupsafe import Markup

from app.pages.common.html import ago, bar, run_link, share_done, status_word, took
from app.words import numbers, runs
from app.words.datasets import data_names
from training.config.fields import settings
from training.units import NONE, byte_size
from worker.store import waiting
from worker.store.listed.run_list import orders
from worker.store.tables import Run, Status, damaged

Names = Mapping[str, str]
"""The display names of data sets by id."""


@dataclass(frozen=True)
class Column:
    """A column: its heading, its cell for a run, what it sorts by (empty: it does not), and its CSS class."""

    label: str
    cell: Callable[[Run, Names], Any]
    order: str = ""
    classes: str = ""


DEFAULT = (
    "status", "name", "model", "data", "method", "progress", "final_loss", "best_loss", "duration", "peak_bytes",
    "owner", "queued_at",
)  # fmt: skip
SORTED_UPWARDS = ("name", "model", "data", "method", "status", "owner")
_WITHOUT_COLUMN = ("name", "data")


@cache
def columns() -> dict[str, Column]:
    """All columns by name: those of a run, then its settings."""
    own = {
        "status": Column("Status", lambda run, _: status_word(run.status, run.request, differs=run.differs), "status"),
        "name": Column("Name", lambda run, _: _name(run), "name", "name"),
        "model": Column("Model", lambda run, _: _model(str(run.config.get("model", ""))), "model", "clip"),
        "data": Column("Data", _data, "data", "clip"),
        "method": Column("Method", lambda run, _: method(run.config), "method"),
        "progress": Column("Progress", lambda run, _: progress(run), "progress"),
        "final_loss": Column("Loss", lambda run, _: _loss(run), "final_loss", "number"),
        "best_loss": Column("Best eval loss", lambda run, _: numbers.decimal(run.best_loss), "best_loss", "number"),
        "duration": Column("Duration", lambda run, _: took(run), "duration", "number"),
        "peak_bytes": Column("Peak memory", lambda run, _: byte_size(run.peak_bytes), "peak_bytes", "number"),
        "owner": Column("Owner", lambda run, _: run.owner, "owner"),
        "queued_at": Column("Queued", lambda run, _: ago(run.queued_at), "queued_at", "number"),
        "started_at": Column("Started", lambda run, _: ago(run.started_at), "started_at", "number"),
        "finished_at": Column("Ended", lambda run, _: ago(run.finished_at), "finished_at", "number"),
        "step": Column("Steps", lambda run, _: numbers.count(run.step), "step", "number"),
        "tokens_per_second": Column("Tokens/s", _summary("tokens_per_second", numbers.count), classes="number"),
        "exact_match": Column("Exact match", lambda run, _: _exact_match(run), classes="number"),
        "trainable_percent": Column("Trainable", _summary("trainable_percent", _percent), classes="number"),
        "adapter_bytes": Column("Result size", _summary("adapter_bytes", byte_size), classes="number"),
        "attempt": Column("Attempts", lambda run, _: numbers.count(run.attempt), classes="number"),
        "devices": Column("Processes", lambda run, _: str(run.config.get("num_processes", 1)), classes="number"),
        "notes": Column("Notes", lambda run, _: _clipped(run.notes), classes="clip"),
        "id": Column("Id", lambda run, _: Markup('<span class="mono">{}</span>').format(run.id)),
    }
    return own | {name: _of_setting(name) for name in settings() if name not in (*own, *_WITHOUT_COLUMN)}


def known(name: str) -> bool:
    """True if there is such a column."""
    return name in columns()


def sortable() -> set[str]:
    """What the table can be sorted by."""
    return set(orders())


def method(config: Mapping[str, Any]) -> Markup:
    """The method and, for several processes, the strategy: "LoRA", "QLoRA ZeRO stage 2 x4"."""
    name, _, strategy = runs.method(config).partition(", ")
    processes = f"{strategy} x{config.get('num_processes', 1)}" if strategy else ""
    return Markup('{} <span class="faint">{}</span>').format(name, processes)


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


def _name(run: Run) -> Markup:
    pin = Markup('<span class="pin" title="Pinned">★</span>') if run.pinned else ""
    waits = run.held and run.status is Status.QUEUED
    states = [
        ("paused", waits and run.at_rung),
        ("held", waits and not run.at_rung),
        ("archived", run.archived_at is not None),
    ]
    if run.status is Status.QUEUED and run.priority:
        states.append((f"{waiting.priority_word(run.priority)} priority", True))
    marks = [(f"is:{word}" if word in ("held", "archived") else "", word) for word, holds in states if holds]
    chips = [(f"tag:{tag}", tag) for tag in run.tags] + marks
    chips += [(f"sweep:{run.sweep_id}", "sweep")] if run.sweep_id else []
    drawn = Markup("").join(_chip(search, word) for search, word in chips)
    if unread := damaged(run):
        drawn += Markup('<span class="chip bad" title="Cannot be read: {}">damaged</span>').format(", ".join(unread))
    return Markup("{}{}{}").format(pin, run_link(run.id, run.name), drawn)


def _chip(search: str, word: str) -> Markup:
    if not search:
        return Markup('<span class="chip">{}</span>').format(word)
    return Markup('<button type="button" class="chip" data-search="{}" title="Show only these">{}</button>').format(
        search if " " not in search else f'{search.partition(":")[0]}:"{search.partition(":")[2]}"', word
    )


def _model(model: str) -> Markup:
    """Without the organization: the end of the name tells models apart."""
    return Markup('<span title="{}">{}</span>').format(model, model.rstrip("/").rsplit("/", 1)[-1])


def _data(run: Run, names: Names) -> Markup:
    return _clipped(data_names(str(run.config.get("data", "")), dict(names)))


def _clipped(path: str) -> Markup:
    short = path.rstrip("/").rsplit("/", 1)[-1] if path.startswith(("/", ".", "~")) else path
    return Markup('<span title="{}">{}</span>').format(path, short)


def _loss(run: Run) -> str | Markup:
    return Markup('<span class="bad">diverged</span>') if run.diverged else numbers.decimal(run.final_loss)


def _exact_match(run: Run) -> str:
    answers = (run.summary or {}).get("answers") or {}
    return numbers.percent(answers.get("exact_match_after"))


def _summary(key: str, text: Callable[[Any], str]) -> Callable[[Run, Names], str]:
    return lambda run, _: text((run.summary or {}).get(key))


def _percent(percent: float | None) -> str:
    return NONE if percent is None else f"{percent:.3g}%"


def _of_setting(name: str) -> Column:
    setting = settings()[name]

    def cell(run: Run, _: Names) -> Markup:
        value = run.config.get(name, setting.default)
        return _clipped(NONE if value in (None, "") else setting.in_words(value))

    number = setting.kind in ("integer", "number")
    return Column(setting.label, cell, "", "number" if number else "clip")
