"""The columns of the table of runs. Each setting is a column as well, by its name."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from app.format import numbers
from app.format.dataset_text import data_names
from app.format.run_text import evaluation, method
from app.format.setting_text import value_in_words
from app.texts import gettext_noop
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
SORTED_UPWARDS = ("name", "model", "data", "method", "status", "owner")


_MAKES_ROOM: Mapping[str, Callable[[Run], Any]] = {
    "model": lambda run: run.config.get("model"),
    "data": lambda run: run.config.get("data"),
    "method": lambda run: method(run.settings),
    "owner": lambda run: run.owner,
}
"""Default columns that are left out where they say the same of all runs, for a setting that varies."""
_MOST_VARYING = 3


def with_varying(runs: Sequence[Run], varying: Sequence[str]) -> tuple[str, ...]:
    """The default columns for these runs: the settings among `varying` with the most values take the places of columns that say the
    same of all runs."""
    own = columns()
    values = {
        name: {own[name].value(run, {}) for run in runs} for name in varying if name in own and name not in DEFAULT
    }
    chosen = sorted(values, key=lambda name: -len(values[name]))[:_MOST_VARYING]
    same = [name for name, value in _MAKES_ROOM.items() if chosen and len({str(value(run)) for run in runs}) == 1]
    left = [name for name in DEFAULT if name not in same]
    place = left.index("progress")
    return (*left[:place], *chosen, *left[place:])


@cache
def columns() -> dict[str, Column]:
    """All columns by name: those of a run, then its settings."""
    own = {
        "status": Column(gettext_noop("Status"), _nothing, "status", "status"),
        "name": Column(gettext_noop("Name"), _nothing, "name", "name"),
        "model": Column(gettext_noop("Model"), lambda run, _: str(run.config.get("model", "")), "model", "model"),
        "data": Column(gettext_noop("Data"), _data, "data", "clip"),
        "method": Column(gettext_noop("Method"), lambda run, _: run.config, "method", "method"),
        "progress": Column(gettext_noop("Progress"), _nothing, "progress", "progress"),
        "final_loss": Column(
            gettext_noop("Loss"),
            lambda run, _: evaluation(run.config.get("task"), run.final_loss),
            "final_loss",
            "loss",
            True,
        ),
        "best_loss": _number(
            gettext_noop("Best eval loss"), lambda run: evaluation(run.config.get("task"), run.best_loss), "best_loss"
        ),
        "duration": Column(gettext_noop("Duration"), _nothing, "duration", "duration", True),
        "peak_bytes": _number(gettext_noop("Peak memory"), lambda run: byte_size(run.peak_bytes), "peak_bytes"),
        "owner": Column(gettext_noop("Owner"), lambda run, _: run.owner, "owner"),
        "queued_at": Column(gettext_noop("Queued"), lambda run, _: run.queued_at, "queued_at", "moment", True),
        "started_at": Column(gettext_noop("Started"), lambda run, _: run.started_at, "started_at", "moment", True),
        "finished_at": Column(gettext_noop("Ended"), lambda run, _: run.finished_at, "finished_at", "moment", True),
        "step": _number(gettext_noop("Steps"), lambda run: numbers.count(run.step), "step"),
        "tokens_per_second": _number(
            gettext_noop("Tokens/s"), lambda run: numbers.count(_summary(run, "tokens_per_second"))
        ),
        "exact_match": _number(gettext_noop("Exact match"), lambda run: numbers.percent(_exact_match(run))),
        "trainable_percent": _number(
            gettext_noop("Trainable"), lambda run: _percent(_summary(run, "trainable_percent"))
        ),
        "adapter_bytes": _number(gettext_noop("Result size"), lambda run: byte_size(_summary(run, "adapter_bytes"))),
        "attempt": _number(gettext_noop("Attempts"), lambda run: numbers.count(run.attempt)),
        "devices": _number(gettext_noop("Processes"), lambda run: str(run.config.get("num_processes", 1))),
        "notes": Column(gettext_noop("Notes"), lambda run, _: run.notes, kind="clip"),
        "id": Column(gettext_noop("Id"), lambda run, _: run.id, kind="code"),
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
        return NONE if configured in (None, "") else value_in_words(setting.name, configured)

    number = setting.kind in ("integer", "number")
    return Column(setting.label, value, kind="text" if number else "clip", is_number=number)
