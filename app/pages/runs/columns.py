"""The columns of the table of runs. Each setting is a column as well, by its name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from app.format import numbers
from app.format.dataset_text import data_names
from training.config.fields import Setting, settings
from training.units import NONE, byte_size
from worker.store.tables import Run

Names = Mapping[str, str]
"""The display names of data sets by id."""


@dataclass(frozen=True)
class Column:
    """A column: its heading, what a cell shows of a run, and what it sorts by (empty: it does not).

    `kind` names the macro of a cell in app/pages/templates/runs_cells.html.
    """

    label: str
    value: Callable[[Run, Names], Any]
    order: str = ""
    kind: str = "text"
    is_number: bool = False


DEFAULT = (
    "status", "name", "model", "data", "method", "progress", "final_loss", "best_loss", "duration", "peak_bytes",
    "owner", "queued_at",
)  # fmt: skip
GROUPINGS = {
    "": "None", "model": "Model", "data": "Data set", "method": "Method", "sweep": "Sweep", "tag": "Tags", "owner": "Owner",
    "status": "Status",
}  # fmt: skip
SORTED_UPWARDS = ("name", "model", "data", "method", "status", "owner")


@cache
def columns() -> dict[str, Column]:
    """All columns by name: those of a run, then its settings."""
    own = {
        "status": Column("Status", _nothing, "status", "status"),
        "name": Column("Name", _nothing, "name", "name"),
        "model": Column("Model", lambda run, _: str(run.config.get("model", "")), "model", "model"),
        "data": Column("Data", _data, "data", "clip"),
        "method": Column("Method", lambda run, _: run.config, "method", "method"),
        "progress": Column("Progress", _nothing, "progress", "progress"),
        "final_loss": Column("Loss", lambda run, _: numbers.decimal(run.final_loss), "final_loss", "loss", True),
        "best_loss": _number("Best eval loss", lambda run: numbers.decimal(run.best_loss), "best_loss"),
        "duration": Column("Duration", _nothing, "duration", "duration", True),
        "peak_bytes": _number("Peak memory", lambda run: byte_size(run.peak_bytes), "peak_bytes"),
        "owner": Column("Owner", lambda run, _: run.owner, "owner"),
        "queued_at": Column("Queued", lambda run, _: run.queued_at, "queued_at", "moment", True),
        "started_at": Column("Started", lambda run, _: run.started_at, "started_at", "moment", True),
        "finished_at": Column("Ended", lambda run, _: run.finished_at, "finished_at", "moment", True),
        "step": _number("Steps", lambda run: numbers.count(run.step), "step"),
        "tokens_per_second": _number("Tokens/s", lambda run: numbers.count(_summary(run, "tokens_per_second"))),
        "exact_match": _number("Exact match", lambda run: numbers.percent(_exact_match(run))),
        "trainable_percent": _number("Trainable", lambda run: _percent(_summary(run, "trainable_percent"))),
        "adapter_bytes": _number("Result size", lambda run: byte_size(_summary(run, "adapter_bytes"))),
        "attempt": _number("Attempts", lambda run: numbers.count(run.attempt)),
        "devices": _number("Processes", lambda run: str(run.config.get("num_processes", 1))),
        "notes": Column("Notes", lambda run, _: run.notes, kind="clip"),
        "id": Column("Id", lambda run, _: run.id, kind="code"),
    }
    return own | {name: _of_setting(one) for name, one in settings().items() if name not in own}


def _number(label: str, text: Callable[[Run], str], order: str = "") -> Column:
    return Column(label, lambda run, _: text(run), order, is_number=True)


def _nothing(run: Run, names: Names) -> None:
    """The value of a column whose macro shows several values of the run."""


def _data(run: Run, names: Names) -> str:
    return data_names(str(run.config.get("data", "")), names)


def _exact_match(run: Run) -> float | None:
    return (_summary(run, "answers") or {}).get("exact_match_after")


def _summary(run: Run, key: str) -> Any:
    return (run.summary or {}).get(key)


def _percent(percent: float | None) -> str:
    return NONE if percent is None else f"{percent:.3g}%"


def _of_setting(setting: Setting) -> Column:
    def value(run: Run, _: Names) -> str:
        configured = run.config.get(setting.name, setting.default)
        return NONE if configured in (None, "") else setting.in_words(configured)

    number = setting.kind in ("integer", "number")
    return Column(setting.label, value, kind="text" if number else "clip", is_number=number)
