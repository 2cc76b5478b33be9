"""The history as a list: filtered, sorted, grouped and cut into pages by the database."""

from collections.abc import Collection
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, cast

from sqlalchemy import ColumnElement, String, func
from sqlalchemy import cast as cast_to
from sqlmodel import Session, col, select

from training.config.fields import settings
from worker.store import filters
from worker.store.tables import Run, Status, Sweep

TIMES = ("queued_at", "created_at", "started_at", "finished_at")
COLUMNS = (*TIMES, "name", "owner", "status", "step", "final_loss", "best_loss", "peak_bytes")
GROUPS = ("model", "data", "method", "sweep", "tag", "owner", "status")
"""What runs can be grouped by, besides each setting."""


@dataclass(frozen=True)
class Query:
    """Which runs are listed, in which order, and which part of them.

    `search` is a filter (worker/store/filters.py), without one no archived runs match; `ids` names the runs instead.
    """

    status: Status | None = None
    search: str = ""
    ids: Collection[str] = ()
    order_by: str = "queued_at"
    descending: bool = True
    limit: int = 200
    offset: int = 0


NEWEST = Query()


@dataclass(frozen=True)
class Group:
    """Listed runs with the same value; `total` and the least evaluation loss `best_loss` are of all runs that match."""

    total: int
    best_loss: float | None
    runs: list[Run]


def listing(*, session: Session, query: Query = NEWEST) -> list[Run]:
    """Lists runs: pinned ones first, those without a value in the sorted column last.

    Raises:
        ValueError: `order_by` is not in `orders()`.
        FilterError: the filter has an unknown field or a wrong value.
    """
    statement = select(Run).where(*_conditions(query)).order_by(col(Run.pinned).desc(), *_order(query))
    return list(session.exec(statement.limit(query.limit).offset(query.offset)))


def groups(*, session: Session, group_by: str, query: Query = NEWEST) -> list[Group]:
    """Lists runs as `listing` does, but by groups: in the order of their values, runs without a value last.

    Raises:
        ValueError: `order_by` is not in `orders()`.
        FilterError: the filter has an unknown field or a wrong value, or `group_by` is neither in GROUPS nor a setting.
    """
    value, conditions = _group(group_by), _conditions(query)
    listed = select(Run, value).where(*conditions).order_by(value.asc().nulls_last(), *_order(query))
    sums = select(value, func.count(), func.min(Run.best_loss)).where(*conditions).group_by(value)
    rows = session.exec(listed.limit(query.limit).offset(query.offset)).all()
    members = {key: [run for run, _ in part] for key, part in groupby(rows, itemgetter(1))}
    sizes = {key: (number, best) for key, number, best in session.exec(cast(Any, sums)).all()}
    # In PostgreSQL each statement sees the present state: runs can have left a group in between.
    return [Group(*sizes.get(key, (len(runs), None)), runs) for key, runs in members.items()]


def count(*, session: Session, query: Query = NEWEST) -> int:
    """The number of runs that match, on all pages.

    Raises:
        FilterError: the filter has an unknown field or a wrong value.
    """
    statement = select(func.count()).select_from(Run).where(*_conditions(query))
    return session.exec(statement).one()


def repeated_names(*, session: Session, names: Collection[str]) -> set[str]:
    """Those of the names that several runs have."""
    alike = select(Run.name).where(col(Run.name).in_(names)).group_by(Run.name).having(func.count() > 1)
    return set(session.exec(alike))


def orders() -> dict[str, ColumnElement[Any]]:
    """The columns that runs can be sorted by."""
    return {name: cast(ColumnElement[Any], col(getattr(Run, name))) for name in COLUMNS} | {
        "model": filters.configured("model"),
        "method": filters.configured("method"),
        "data": filters.data_name(),
        "sweep": cast(ColumnElement[Any], func.coalesce(_sweep_name(), "")),
        "progress": Run.step * 1.0 / func.nullif(Run.total_steps, 0),
        "duration": filters.elapsed(),
    }


def _sweep_name() -> ColumnElement[Any]:
    """The name of a run's sweep with its id, which tells sweeps of the same name apart."""
    named = Sweep.name + " · " + Sweep.id
    return select(named).where(Sweep.id == Run.sweep_id).scalar_subquery()


def _conditions(query: Query) -> list[filters.Condition]:
    if query.ids:
        return [col(Run.id).in_(query.ids)]
    chosen: list[filters.Condition] = [] if query.status is None else [col(Run.status) == query.status]
    return chosen + filters.conditions(query.search)


def _order(query: Query) -> list[ColumnElement[Any]]:
    if query.order_by not in orders():
        raise ValueError(f"Runs cannot be sorted by {query.order_by!r}. Choose {', '.join(orders())}.")
    column = orders()[query.order_by]
    return [(column.desc() if query.descending else column.asc()).nulls_last(), col(Run.id).desc()]


def _group(name: str) -> ColumnElement[Any]:
    """What the runs of a group have in common; those without a tag, or not of a sweep, have null."""
    if name == "tag":
        return func.nullif(cast_to(Run.tags, String), "[]")
    if name == "sweep":
        return _sweep_name()
    if name == "data":  # other data sets, and mixtures, can have the same name
        return filters.data_name() + "\n" + filters.configured("data")
    if name in GROUPS:
        return orders()[name]
    if name in settings():
        return filters.set_value(settings()[name])
    fix = f"Use {', '.join(GROUPS)} or the name of a setting."
    raise filters.FilterError("group", name, "is nothing that runs can be grouped by.", fix)
